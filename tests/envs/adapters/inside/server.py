"""A small MCP server with a state: python server.py stdio, or python server.py PORT."""

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("counter")
count = 0


@server.tool()
def add(number: int) -> str:
    """Add to the count.

    Args:
        number: how much.
    """
    global count
    count += number
    return f"the count is {count}"


@server.tool()
def write(file: str, text: str) -> str:
    """Write a file."""
    with open(os.path.join(sys.argv[2], file), "x") as opened:
        opened.write(text)
    return " ".join([*sorted(os.listdir(".")), os.environ["NAME"], os.getcwd()])


@server.tool(name="fail hard")
def fail() -> str:
    """Always fails."""
    raise ValueError("it never works")


@server.tool()
def long(characters: int) -> str:
    """So many characters."""
    return "z" * characters


@server.tool()
def end() -> str:
    """End the server's process."""
    os._exit(3)


if sys.argv[1] == "stdio":
    server.run()
elif sys.argv[1] == "broken":
    sys.exit("no configuration file")
else:
    server.run("streamable-http", port=int(sys.argv[1]))

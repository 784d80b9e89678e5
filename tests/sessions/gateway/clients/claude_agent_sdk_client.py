"""claude-agent-sdk: Claude Code with a tool of its own, then a second question in the same conversation."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, tool


@tool("add", "Add two numbers.", {"a": int, "b": int})
async def add(arguments):
    return {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}


async def main() -> None:
    options = ClaudeAgentOptions(
        model="m",
        system_prompt="Use add.",
        tools=[],
        mcp_servers={"sums": create_sdk_mcp_server("sums", tools=[add])},
        allowed_tools=["mcp__sums__add"],
        setting_sources=[],
    )
    async with ClaudeSDKClient(options) as client:
        for question in ("What is 2 + 3?", "And now?"):
            await client.query(question)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    print(message.result)


asyncio.run(main())

"""The tools of an MCP server, as a process that speaks over its standard streams, or at a URL (streamable HTTP).

Each episode has a connection of its own, made at its first call: a server's state (a browser, a folder, a cart) is then
one episode's. `shared=true` has one connection for a run, for servers without state. Each is opened and closed in one
task, since the library's scopes must be left by the task that entered them.

What a server keeps in files outlives its process. So a connection has an empty folder and a name of its own, which the
settings can refer to; whether the server keeps to them is the server's affair, and the settings'.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agentrl.config import ToolConfig
from agentrl.config.secrets import Command, Secrets, address, command
from agentrl.errors import ConfigError, DeadlineExceeded, InfraError, ToolError, require_extra
from agentrl.tools.sources import OpenTools, ToolSource
from agentrl.tools.tool import Tool

END_SECONDS = 8.0
"""A server that does not end when its input does is killed by the library; a connection gets this long in all."""
SHOWN_LOG = 2000
"""Characters of a server's standard error that a message repeats."""
MAX_PAGES = 50
FOLDER, SESSION = "{folder}", "{session}"


class McpConfig(ToolConfig):
    """Settings of `tools.NAME=mcp`."""

    command: Command | None = None
    """The server as a command line; it runs in no shell. Here and in `env` and `cwd`, {folder} is a folder that each
    episode has to itself, empty at first and removed in the end; here, in those and in `url` and `headers`, {session}
    is a name that no other episode has."""
    url: str | None = None
    """Or its address (streamable HTTP)."""
    env: Secrets = Field({})
    """Environment variables of the command, besides a few such as PATH and HOME."""
    cwd: str | None = None
    """The command's working directory."""
    headers: Secrets = Field({})
    """Headers of each request to the URL, such as Authorization."""
    shared: bool = False
    """One connection for a whole run, not one for each episode."""

    @model_validator(mode="after")
    def _one_place(self) -> McpConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has either a `command` or a `url`")
        if self.command is None and any(FOLDER in text for text in (str(self.url), *self.headers.values())):
            raise ValueError(f"{FOLDER} is a folder of this machine, for a `command`; a `url` may have {SESSION}")
        return self

    def filled(self, folder: str, session: str) -> McpConfig:
        """The settings of one connection, without placeholders; the command's are left to `arguments`."""

        def fill(text: str | None) -> str | None:
            return None if text is None else text.replace(FOLDER, folder).replace(SESSION, session)

        def fill_all(texts: dict[str, str]) -> dict[str, str]:
            return {name: str(fill(text)) for name, text in texts.items()}

        new = {
            "env": fill_all(self.env),
            "headers": fill_all(self.headers),
            "cwd": fill(self.cwd),
            "url": fill(self.url),
        }
        return self.model_copy(update=new)

    def arguments(self, folder: str, session: str) -> list[str]:
        """The command's arguments; a placeholder's value is a part of one argument, whatever is in it."""
        parts = shlex.split(self.command or "")
        return [part.replace(FOLDER, folder).replace(SESSION, session) for part in parts]


class _Connection:
    """A connection to a server, opened by the first call."""

    def __init__(self, config: McpConfig) -> None:
        self._config = config
        self._begun: tuple[asyncio.Task[None], asyncio.Future[Any]] | None = None
        self._closing = asyncio.Event()
        self._log = ""

    @property
    def used(self) -> bool:
        return self._begun is not None

    async def client(self) -> Any:
        """The library's client."""
        if self._begun is None:
            if self._closing.is_set():
                raise InfraError(f"{self._where} was called after its episode's end")
            ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._begun = asyncio.create_task(self._run(ready)), ready
        task, ready = self._begun
        done, _ = await asyncio.wait({ready, task}, timeout=self._config.start_timeout, return_when="FIRST_COMPLETED")
        if not done:
            raise DeadlineExceeded(f"{self._where} did not answer within {self._config.start_timeout:g} s{self._log}")
        if task.done():
            error = task.exception()
            raise InfraError(f"{self._where} has ended: {_words(error) if error else 'closed'}{self._log}") from error
        return ready.result()

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool; its answer as text."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = await self.client()
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise InfraError(f"{self._where} has ended in a call of {name!r}{self._log}") from error
            raise ToolError(error.message) from error
        except OSError as error:
            raise InfraError(f"{self._where}: {_words(error)}") from error
        text = "\n".join(_text(block) for block in result.content)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    async def close(self) -> None:
        """End the connection, and the server where it is a process."""
        self._closing.set()
        if self._begun is None:
            return
        task, _ = self._begun
        await asyncio.wait({task}, timeout=END_SECONDS)
        task.cancel()
        await asyncio.wait({task}, timeout=END_SECONDS)

    @property
    def _where(self) -> str:
        shown = command(self._config.command) or address(str(self._config.url))
        return f"the MCP server {shown!r}"

    async def _run(self, ready: asyncio.Future[Any]) -> None:
        from mcp import Client

        session = uuid.uuid4().hex
        with (
            tempfile.TemporaryDirectory(prefix="agentrl-mcp-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile("w+", errors="replace") as log,
        ):
            try:
                async with AsyncExitStack() as stack:
                    transport = await self._transport(stack, log, folder, session)
                    client = await stack.enter_async_context(Client(transport))
                    ready.set_result(client)
                    await self._closing.wait()
            finally:
                with contextlib.suppress(OSError):
                    log.seek(0)
                    said = log.read()[-SHOWN_LOG:].strip()
                    self._log = f"; it wrote: {said}" if said else ""

    async def _transport(self, stack: AsyncExitStack, log: Any, folder: str, session: str) -> Any:
        config = self._config.filled(folder, session)
        if config.command is not None:
            from mcp import StdioServerParameters, stdio_client

            program, *args = config.arguments(folder, session)
            return stdio_client(StdioServerParameters(command=program, args=args, env=config.env, cwd=config.cwd), log)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        unlimited = httpx2.Timeout(None)  # calls and the start have deadlines of their own
        http = await stack.enter_async_context(create_mcp_http_client(config.headers, unlimited))
        return streamable_http_client(str(config.url), http_client=http)


class Mcp(ToolSource):
    """The tools of an MCP server."""

    settings: ClassVar[type[ToolConfig]] = McpConfig
    config: McpConfig
    _first: _Connection | None = None

    async def start(self) -> Sequence[Tool]:
        """List the server's tools, by a connection that is kept where it is shared.

        Raises:
            MissingExtra: mcp is not installed.
            ConfigError: the server can't be started or reached.
        """
        with require_extra("mcp", "mcp"):
            import mcp  # noqa: F401
        self._first = _Connection(self.config)
        try:
            client = await self._first.client()
        except InfraError as error:
            raise ConfigError(str(error)) from error
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [
                Tool(tool.name, tool.description or "", tool.input_schema, _refuse_unopened) for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                break
        if not self.config.shared:
            await self._first.close()
        return found

    def open(self, tools: Sequence[Tool]) -> OpenTools:
        """Tools that call a connection of their own, or the shared one."""
        if self.config.shared and self._first is not None:
            return OpenTools([_bind(tool, self._first) for tool in tools])
        own = _Connection(self.config)
        return OpenTools([_bind(tool, own) for tool in tools], own.close, lambda: own.used)

    async def close(self) -> None:
        if self._first is not None:
            await self._first.close()


def _bind(tool: Tool, connection: _Connection) -> Tool:
    async def invoke(arguments: dict[str, Any], _: Any) -> str:
        return await connection.call(tool.name, arguments)

    return replace(tool, invoke=invoke, model_errors=(ConnectionError, TimeoutError))


async def _refuse_unopened(arguments: dict[str, Any], _: Any) -> Any:
    raise AssertionError("a listed tool is called by what `open` gives")


def _text(block: Any) -> str:
    """A block of an answer as text; what is no text is named by its kind."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    return f"[{block.type}{' ' + block.mime_type if getattr(block, 'mime_type', None) else ''}]"


def _words(error: BaseException) -> str:
    """The message of an error; of a group, its first error's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"

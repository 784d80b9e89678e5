"""A socket's connections, each served by a task of its own until all of them are closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agentrl.common.concurrency import current_task


class ConnectionListener:
    """Listens on an address and serves what connects.

    Args:
        serve: called for each connection, which is closed when that returns. It reads lines and heads of at most 64 KiB
            (asyncio's default).
    """

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._serve = serve
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen on a network address of this machine, with TLS where that is given; returns the port."""
        self._server = await asyncio.start_server(self._accept, host, 0, ssl=tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Listen no longer, and end all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = current_task()
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            return  # `close` ended it: Python 3.11's streams print a traceback of a handler that stays cancelled
        finally:
            self._open.discard(task)
            with suppress(OSError):
                writer.close()

"""Connections that end with whoever serves them."""

from __future__ import annotations

import asyncio
from typing import Any

from agentrl.cluster.listening import Connections


async def test_closing_ends_open_connections_without_a_word() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    begun = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.readexactly(9)

    connections = Connections(serve)
    reader, writer = await asyncio.open_connection("127.0.0.1", await connections.listen("127.0.0.1"))
    await asyncio.wait_for(begun.wait(), 60)
    await connections.close()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    await asyncio.sleep(0)
    assert reports == []

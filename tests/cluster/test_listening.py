"""Connections that end with whoever serves them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from agentrl.cluster import connect
from agentrl.cluster.wire.calls import Calls, Listener
from agentrl.cluster.wire.frames import CANCEL, encode
from agentrl.cluster.wire.listening import ConnectionListener
from agentrl.errors import InfraError
from tests.cluster.roles import Counter


async def test_closing_ends_open_connections_without_a_word() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    begun = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.readexactly(9)

    connections = ConnectionListener(serve)
    reader, writer = await asyncio.open_connection("127.0.0.1", await connections.listen("127.0.0.1"))
    await asyncio.wait_for(begun.wait(), 60)
    await connections.close()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    await asyncio.sleep(0)
    assert reports == []


async def test_a_listener_that_is_closed_ends_the_calls_of_its_connections() -> None:
    """A lease outlived the listener that it was asked of, and its engine kept the request."""
    role = Counter()
    async with Listener(role, "role", "role", "127.0.0.1", b"k" * 32) as address:
        connection = await asyncio.to_thread(connect, address)
        call = asyncio.create_task(connection.call("forever", timeout=None))
        await asyncio.sleep(0)  # it is sent
        assert await connection.call("waiting", timeout=60) == 1
    assert role.waiting == 0
    with pytest.raises(InfraError, match="lost"):
        await call


async def test_a_call_that_is_cancelled_before_it_began_is_forgotten() -> None:
    """Both messages came at once, where the machine was busy, and each such call was kept as long as its connection."""
    reader, unused = asyncio.StreamReader(), cast(Any, None)
    reader.feed_data(encode((1, "forever", ())) + encode((1, CANCEL, ())))
    calls = Calls(Counter(), "here", unused)
    serving = asyncio.create_task(calls.serve(reader))
    await asyncio.sleep(0)
    (call,) = calls._tasks.values()
    await asyncio.wait((call,))
    await asyncio.sleep(0)
    assert not calls._tasks
    reader.feed_eof()
    await serving

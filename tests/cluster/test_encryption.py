"""Workers that are called over TLS (`cluster.encrypted`)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agentrl.cluster import Address, Role, connect, opened
from agentrl.cluster.wire.calls import Listener
from agentrl.cluster.wire.listening import ConnectionListener
from agentrl.config import ClusterConfig
from agentrl.errors import InfraError

LONG = 120.0


class Echo:
    """What is called."""

    def same(self, value: Any) -> Any:
        return value

    async def several(self, value: Any, count: int) -> AsyncIterator[Any]:
        for _ in range(count):
            yield value


@asynccontextmanager
async def listening(encrypted: bool = True) -> AsyncIterator[Address]:
    async with Listener(Echo(), "echo", "here", "127.0.0.1", secrets.token_bytes(32), encrypted=encrypted) as address:
        yield address


@asynccontextmanager
async def overheard(address: Address) -> AsyncIterator[tuple[Address, bytearray]]:
    """The address of a relay to a worker, and what passes there."""
    heard = bytearray()

    async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            heard.extend(data)
            sink.write(data)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, worker = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(relay(reader, worker), relay(answers, writer))

    relays = ConnectionListener(serve)
    try:
        yield replace(address, port=await relays.listen("127.0.0.1")), heard
    finally:
        await relays.close()


@pytest.mark.parametrize("encrypted", [True, False])
async def test_what_is_sent_is_seen_on_the_way_only_where_it_is_not_encrypted(encrypted: bool) -> None:
    word = secrets.token_hex(16)
    async with listening(encrypted) as address, overheard(address) as (by_relay, heard):
        connection = await asyncio.to_thread(connect, by_relay)
        assert await connection.call("same", word, timeout=LONG) == word
        assert (word.encode() in heard) is not encrypted
        await asyncio.to_thread(connection.close)


@pytest.mark.slow
async def test_large_messages_go_both_ways_at_once_from_many_callers() -> None:
    data = [secrets.token_bytes(3_000_000 + number) for number in range(6)]
    async with listening() as address:
        connection = await asyncio.to_thread(connect, address)
        calls = [connection.call("same", each, timeout=LONG) for each in data]
        threads = [asyncio.to_thread(connection.run, "same", each, timeout=LONG) for each in data]
        assert await asyncio.gather(*calls, *threads) == data + data
        assert [each async for each in connection.stream("several", data[0], 3, timeout=LONG)] == [data[0]] * 3
        await asyncio.to_thread(connection.close)
        assert connection.ended.done()


async def test_a_worker_with_another_certificate_is_refused_before_anything_is_exchanged() -> None:
    async with listening() as address, listening() as other:
        with pytest.raises(InfraError, match="refused the connection: SSLCertVerificationError"):
            await asyncio.to_thread(connect, replace(address, certificate=other.certificate))
    async with listening(encrypted=False) as plain:
        with pytest.raises(InfraError, match="refused the connection"):
            await asyncio.to_thread(connect, replace(plain, certificate=other.certificate))


async def test_a_connection_ends_with_the_worker_that_it_leads_to() -> None:
    async with listening() as address:
        connection = await asyncio.to_thread(connect, address)
        assert await connection.call("same", 1, timeout=LONG) == 1
    with pytest.raises(InfraError, match="was lost"):
        await connection.call("same", 1, timeout=LONG)
    await asyncio.to_thread(connection.close)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "ray"])
def test_workers_have_certificates_where_it_is_set_and_ask_for_their_keys_all_the_same(
    name: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue("ray_nodes").address if name == "ray" else None
    config = ClusterConfig.model_validate({"name": name, "address": address, "encrypted": True})
    with opened(config, None) as cluster:
        worker = cluster.spawn(Role("environments", "tests.cluster.roles:Counter", (5,), threads=1))
        worker.wait_ready(LONG)
        assert worker.address.certificate is not None
        connection = connect(worker.address)
        assert connection.run("count", timeout=LONG) == 5
        connection.close()
        with pytest.raises(InfraError, match=r"refused the connection|does not know"):
            connect(replace(worker.address, key=secrets.token_bytes(32)))

"""HTTP from other nodes to a server that listens on this machine alone: connections that begin with the key go through.

Inference servers have routes that load weights and run code, and not every server asks for a key on all of them. So
they listen on loopback, and this is what other nodes reach: it reads a connection's first head, and passes on every
byte of a connection whose `Authorization` is right. The key is in no command line. The traffic is not encrypted.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress

from agentrl.cluster.wire.listening import ConnectionListener

HEAD_SECONDS = 30.0
"""Seconds that a connection may take to send a head."""
_PIECE = 1 << 16
_REFUSED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Forwarder:
    """Forwards HTTP connections.

    Args:
        port: of the server, on 127.0.0.1.
        key: the bearer token of those who may connect.

    Attributes:
        listen, close: those of `ConnectionListener`.
    """

    def __init__(self, port: int, key: str) -> None:
        self._port, self._wanted = port, f"Bearer {key}".encode()
        connections = ConnectionListener(self._serve)
        self.listen, self.close = connections.listen, connections.close

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            if hmac.compare_digest(_authorization(head), self._wanted):
                await self._forward(head, reader, writer)
            else:
                writer.write(_REFUSED)
                await writer.drain()

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            requests.write(head)
            async with asyncio.TaskGroup() as both:
                ways = both.create_task(_pipe(reader, requests)), both.create_task(_pipe(answers, writer))
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:  # a side that closes ends the connection
                    way.cancel()
        finally:
            requests.close()


def _authorization(head: bytes) -> bytes:
    """The value of a head's `Authorization`; empty where there is none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            return value.strip()
    return b""


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()

"""Messages between a worker and those that call it: pickled, each behind its length.

Both ends are the same program. The connection is a pair of sockets that nobody else has, or one whose other end has
proved that it knows the worker's key (`connection.authenticate`), so pickle is safe here.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections import Counter
from typing import Any, Protocol

CANCEL = "cancel"
"""The method that aborts the call of the same number."""
traffic = Counter[str]()
"""Bytes that this process has sent to and received from workers, and those that call it."""
_LENGTH = struct.Struct(">Q")


class Receiving(Protocol):
    """A connected socket, as far as it is received from."""

    def recv_into(self, buffer: memoryview) -> int:
        """See `socket.socket`."""


def encode(message: Any) -> bytes:
    """A message as it is sent."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    traffic["sent"] += len(data)
    return _LENGTH.pack(len(data)) + data


async def read(reader: asyncio.StreamReader) -> Any:
    """The next message.

    Raises:
        EOFError, OSError: the other end closed the connection.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    traffic["received"] += length
    return pickle.loads(await reader.readexactly(length))


def receive(connection: Receiving) -> Any:
    """The next message of a connection that no event loop reads yet; raises as `read` does."""
    (length,) = _LENGTH.unpack(exactly(connection, _LENGTH.size))
    traffic["received"] += length
    return pickle.loads(exactly(connection, length))


def exactly(connection: Receiving, count: int) -> bytearray:
    """So many bytes of a connection; raises as `read` does."""
    data = bytearray(count)
    view, have = memoryview(data), 0
    while have < count:
        more = connection.recv_into(view[have:])
        if not more:
            raise EOFError("the connection was closed")
        have += more
    return data

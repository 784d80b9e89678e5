"""Connections to one inference server, kept between requests: HTTP/1.1 as such servers speak it, and no more.

A turn comes in many small events, and each costs a general HTTP client more than all else that is done with it. So
there are no redirects, cookies, proxies or compressed answers here. A request that is left early closes its connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""An idle connection is not used again after them: servers close one after five (uvicorn), and a request that is sent
as it is closed is lost."""
_HEAD_BYTES = 1 << 16


class BrokenConnection(ConnectionError):
    """The server hung up, or what it answers is not HTTP."""


class Connections:
    """The connections to one server.

    Args:
        url: its address; a path in it precedes those of requests.
        headers: fields of every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._headers, self._closed = headers, False
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self.set_url(url)

    def set_url(self, url: str) -> None:
        """Use another address from now on."""
        self._address = urlsplit(url)
        fields = {"host": self._address.netloc.rpartition("@")[2], "content-type": "application/json", **self._headers}
        self._fields = _written(fields)
        while self._idle:
            self._idle.pop().close()

    @asynccontextmanager
    async def request(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Connection]:
        """Send a request; in the block its answer is read, from its status on.

        Raises:
            OSError: the server can't be reached, hung up, or answers what is not HTTP.
        """
        connection = self._kept() or await self._opened()
        self._busy.add(connection)
        head = f"{method} {self._address.path}{path} HTTP/1.1\r\n{self._fields}{_written(headers or {})}"
        try:
            await connection.ask(f"{head}content-length: {len(content)}\r\n\r\n".encode("latin-1") + content)
            yield connection
        finally:
            self._busy.discard(connection)
            if connection.complete and not self._closed:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    def _kept(self) -> Connection | None:
        """The connection that was used last, if it can be used again; those that can't any more are closed."""
        oldest = time.monotonic() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).close()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _opened(self) -> Connection:
        if self._closed:
            raise BrokenConnection("the connections were closed")
        host, port, encrypted = self._address.hostname, self._address.port, self._address.scheme == "https"
        if host is None:
            raise BrokenConnection("the server has no address yet")
        if encrypted and self._tls is None:
            import httpx

            self._tls = httpx.create_ssl_context(trust_env=False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, host, port or (443 if encrypted else 80), ssl=self._tls if encrypted else None
                )
        except TimeoutError:
            raise BrokenConnection(f"no connection within {CONNECT_SECONDS:g} s") from None
        return connection

    def close(self) -> None:
        """Hang up, also where a request is under way; idempotent."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()


def _written(headers: Mapping[str, str]) -> str:
    """Header fields as they are sent."""
    for name, value in headers.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"the header {name} would end within its value")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


class Connection(asyncio.Protocol):
    """One connection, and the answer that it receives.

    Attributes:
        status: of the answer.
        complete: whether all of the answer has come, and another request may follow.
        idle_since: when the last request ended, in seconds of `time.monotonic()`.
    """

    def __init__(self) -> None:
        self.status, self.complete, self.idle_since = 0, False, 0.0
        self._data, self._hung_up = bytearray(), False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: Any = None
        self._body: _Body = _Sized(0)
        self._kept = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has accepted."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """More has come."""
        self._data += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more."""
        self._hung_up = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        """Until more has come than what has been looked at.

        Raises:
            BrokenConnection: nothing does.
        """
        if self._hung_up:
            raise BrokenConnection("the server hung up")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    @property
    def usable(self) -> bool:
        """Whether the server keeps it, and has sent nothing that no request asked for."""
        return not (self._hung_up or self._data or self._transport.is_closing())

    async def ask(self, request: bytes) -> None:
        """Send a request and wait for the head of its answer.

        Raises:
            BrokenConnection: there is none.
        """
        self.complete = False
        self._transport.write(request)
        while True:
            while (end := self._data.find(b"\r\n\r\n")) < 0:
                if len(self._data) > _HEAD_BYTES:
                    raise BrokenConnection(f"the answer's head has more than {_HEAD_BYTES} bytes")
                await self._more()
            head = bytes(self._data[:end])
            del self._data[: end + 4]
            self._read_head(head)
            if self.status >= 200:  # else it is an interim answer
                return

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise BrokenConnection(f"the answer is not HTTP/1: {first[:100]!r}")
        self.status = int(rest[:3])
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = b"0" if self.status in (204, 304) else fields.get(b"content-length", b"")
        if fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self._body = _Chunked()
        else:
            self._body = _Sized(int(length) if length.isdigit() else None)
        closes = b"close" in fields.get(b"connection", b"").lower() or version == b"HTTP/1.0"
        self._kept = not closes and not self._body.ends_with_connection

    async def piece(self) -> bytes:
        """What has come of the answer's body since the last call, once something has; empty at its end.

        Raises:
            BrokenConnection: it breaks off.
        """
        body = self._body
        while not body.ended:
            if piece := body.take(self._data):
                return piece
            if self._hung_up and body.ends_with_connection:
                break
            if not body.ended:
                await self._more()
        self.complete = self._kept
        return b""

    async def whole(self) -> bytes:
        """All of the answer's body; see `piece`."""
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()


class _Body(Protocol):
    """How an answer's body is told from what follows it."""

    ended: bool
    ends_with_connection: bool

    def take(self, data: bytearray) -> bytes:
        """Take what has come of it off the beginning of `data`."""
        ...


class _Sized:
    """A body of so many bytes; None: of as many as come."""

    def __init__(self, left: int | None) -> None:
        self._left, self.ended, self.ends_with_connection = left, left == 0, left is None

    def take(self, data: bytearray) -> bytes:
        piece = bytes(data if self._left is None else data[: self._left])
        del data[: len(piece)]
        if self._left is not None:
            self._left -= len(piece)
            self.ended = self._left == 0
        return piece


class _Chunked:
    """A body in chunks: a line with each one's size in hexadecimal digits, its bytes, and an end of a line."""

    ends_with_connection = False

    def __init__(self) -> None:
        self.ended = False
        self._left, self._begun, self._last = 0, False, False

    def take(self, data: bytearray) -> bytes:
        pieces, at = [], 0
        while not self.ended:
            if self._left:
                piece = bytes(data[at : at + self._left])
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
            end = data.find(b"\n", at)
            if end < 0:
                break
            line, at = bytes(data[at:end]).strip(), end + 1
            self._line(line)
        del data[:at]
        return b"".join(pieces)

    def _line(self, line: bytes) -> None:
        """A line between chunks: the end of one, a size, or after the last one a trailing field."""
        if self._last:
            self.ended = not line
        elif self._begun:
            self._begun = False
            if line:
                raise BrokenConnection(f"a chunk is longer than its size: {line[:40]!r}")
        else:
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise BrokenConnection(f"a chunk has no size: {line[:40]!r}") from None
            self._begun, self._last = self._left > 0, self._left == 0

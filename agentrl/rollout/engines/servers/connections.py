"""Connections to one inference server, kept between requests: HTTP/1.1 as such servers speak it, and no more.

A turn comes in many small events, and each costs a general HTTP client more than all else that is done with it. So
the parser is httptools', and there are no redirects, cookies, proxies or compressed answers here. A request that is
left early closes its connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""An idle connection is not used again after them: servers close one after five (uvicorn), and a request that is sent
as it is closed is lost."""
_HEAD_BYTES = 1 << 16


class BrokenConnection(ConnectionError):
    """The server hung up, or what it answers is not HTTP."""


class ConnectionPool:
    """The connections to one server.

    Args:
        url: its address; a path in it precedes those of requests.
        headers: fields of every request.

    Attributes:
        idle: those that wait for another request, the one that was used last at the end.
        idle_seconds: how long they may wait.
    """

    idle_seconds = IDLE_SECONDS

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._headers, self._closed = headers, False
        self.idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._tls: ssl.SSLContext | None = None
        self.set_url(url)

    def set_url(self, url: str) -> None:
        """Use another address from now on."""
        self._address = urlsplit(url)
        fields = {"host": self._address.netloc.rpartition("@")[2], "content-type": "application/json", **self._headers}
        self._fields = _format_headers(fields)
        while self.idle:
            self.idle.pop().close()

    @asynccontextmanager
    async def request(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[HttpConnection]:
        """Send a request; in the block its answer is read, from its status on.

        Raises:
            OSError: the server can't be reached, hung up, or answers what is not HTTP.
        """
        connection = self._take_kept() or await self._open()
        self._busy.add(connection)
        head = f"{method} {self._address.path}{path} HTTP/1.1\r\n{self._fields}{_format_headers(headers or {})}"
        try:
            await connection.ask(f"{head}content-length: {len(content)}\r\n\r\n".encode("latin-1") + content)
            yield connection
        finally:
            self._busy.discard(connection)
            if connection.complete and not self._closed:
                connection.idle_since = time.monotonic()
                self.idle.append(connection)
            else:
                connection.close()

    def _take_kept(self) -> HttpConnection | None:
        """The connection that was used last, if it can be used again; those that can't any more are closed."""
        oldest = time.monotonic() - self.idle_seconds
        while self.idle and self.idle[0].idle_since < oldest:
            self.idle.pop(0).close()
        while self.idle:
            connection = self.idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _open(self) -> HttpConnection:
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
                    HttpConnection, host, port or (443 if encrypted else 80), ssl=self._tls if encrypted else None
                )
        except TimeoutError:
            raise BrokenConnection(f"no connection within {CONNECT_SECONDS:g} s") from None
        return connection

    def close(self) -> None:
        """Close all connections, also where a request is under way; idempotent."""
        self._closed = True
        for connection in (*self.idle, *self._busy):
            connection.close()
        self.idle.clear()


def _format_headers(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"the header {name} would end within its value")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


class HttpConnection(asyncio.Protocol):
    """One connection, and the answer that it receives.

    Attributes:
        status: of the answer.
        complete: whether all of the answer has come, and another request may follow.
        idle_since: when the last request ended, in seconds of `time.monotonic()`.
    """

    def __init__(self) -> None:
        self.status, self.complete, self.idle_since = 0, False, 0.0
        self._transport: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._broken: BrokenConnection | None = None
        self._parser = HttpResponseParser(self)
        self._asked = False
        self._begin()

    def _begin(self) -> None:
        self._body, self._head_bytes = bytearray(), 0
        self._headed = self._framed = self._ended = self._take_kept = False

    # -------------------------------------------------------------------------- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the server has accepted."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that arrived."""
        if not self._headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._head_bytes > _HEAD_BYTES and not self._headed:
                raise BrokenConnection(f"the answer's head has more than {_HEAD_BYTES} bytes")
        except BrokenConnection as error:
            self._broken = error
        except HttpParserError as error:
            self._broken = BrokenConnection(f"the answer is not HTTP/1: {error}")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End an answer whose length was not said: nothing comes any more."""
        self._ended = self._ended or (self._headed and not self._framed)
        self._broken = self._broken or BrokenConnection("the server hung up")
        self._wake()

    # ----------------------------------------------------------------------------- what the parser calls

    def on_message_begin(self) -> None:
        """Begin an answer."""
        if not self._asked:
            raise BrokenConnection("the server sent what nothing asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the answer's head."""
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """The head has come; one of an interim answer is followed by another."""
        self.status = self._parser.get_status_code()
        self._headed, self._take_kept = self.status >= 200, self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """A part of the body has come."""
        self._body += body

    def on_message_complete(self) -> None:
        """Note that the whole answer has come."""
        if self._headed:
            self._ended, self._asked = True, False

    # ------------------------------------------------------------------------------- what a request calls

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        """Wait until more has come than what has been looked at; BrokenConnection where nothing does, or not HTTP."""
        if self._broken is not None:
            raise self._broken
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    @property
    def usable(self) -> bool:
        """True while the server keeps the connection, and has sent nothing that no request asked for."""
        return self._broken is None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> None:
        """Send a request and wait for the head of its answer; BrokenConnection where there is none."""
        self.complete, self._asked = False, True
        self._begin()
        self._transport.write(request)
        while not self._headed:
            await self._more()

    async def piece(self) -> bytes:
        """Return the answer's body since the last call, once there is some; empty at its end.

        Raises:
            BrokenConnection: it breaks off.
        """
        while not self._body and not self._ended:
            await self._more()
        piece = bytes(self._body)
        self._body.clear()
        if not piece:
            self.complete = self._take_kept and self._broken is None
        return piece

    async def whole(self) -> bytes:
        """Return the whole body of the answer; see `piece`."""
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

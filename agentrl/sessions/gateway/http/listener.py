"""Any ASGI application on a port, in the event loop of its caller: what the gateway, its workers and the viewer share.

It imports neither a web framework nor an SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrl.common.foreign_errors import port_advice
from agentrl.errors import InfraError
from agentrl.sessions.gateway.delivery import CLIENT, GatewayClient
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.tls import Tls
from agentrl.sessions.gateway.limits import Limits

START_SECONDS = 30.0
STOP_SECONDS = 10
PROBE_SECONDS, LONGEST_PROBE = 0.05, 5.0
"""Seconds between two interim responses to a client that may have left: at first, doubled each time, and at most."""
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large"}


@contextlib.asynccontextmanager
async def serve_app(app: Any, listener: socket.socket, limits: Limits, tls: Tls | None = None) -> AsyncIterator[None]:
    """Serve any ASGI application on a listening socket while the block runs.

    Raises:
        InfraError: the server did not start.
    """
    config = uvicorn.Config(
        _with_head(app),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=120,
        timeout_graceful_shutdown=STOP_SECONDS,
        server_header=False,
        proxy_headers=False,
        http=connection_type(limits),
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(START_SECONDS):
            while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no event for it)
                await asyncio.sleep(0.01)
        if serving.done():
            raise InfraError(f"the server did not start on {listener.getsockname()}") from serving.exception()
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS + 5):
                await serving


def _with_head(app: Any) -> Any:
    """An application that answers HEAD wherever it answers GET; the server leaves the body out."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await app(scope, receive, send)

    return answer


def address(listener: socket.socket, host: str, tls: Tls | None = None) -> str:
    """The URL of a listening socket."""
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{name}:{listener.getsockname()[1]}"


def listening(host: str, port: int) -> socket.socket:
    """A listening socket that says that it is TCP: asyncio sends without delay only on those (40 ms a reply)."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise InfraError(f"can't listen on {host}:{port}: {error}{port_advice(error)}") from error
    return bound


class _Server(uvicorn.Server):
    """A server that leaves the process's signals alone: it runs in an event loop of its caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class GatewayConnection(HttpToolsProtocol):
    """One client's connection; a subclass sets the limits (see `connection_type`).

    Requests' heads are bounded in size and time as their bodies are; the server's own protocol waits for the rest of
    a head without a limit. It also sends a reply's head by itself, which costs a system call and wakes the client too
    early; here head and body are sent together.

    A client may close its own half of the connection behind a request and read on. From here that looks as if it had
    closed all of it, but only then is what it is sent answered with a reset. So an interim response, which clients pass
    over, is sent while the reply is awaited. HTTP/1.0 has no interim responses and TLS no halves: there the client is
    gone.
    """

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None
    _reading_head = False
    _head_bytes = 0
    _rejected = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; its first head is timed from now on."""
        super().connection_made(Corked(transport))  # type: ignore[arg-type]
        self._head_begins()
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head that is still incomplete are counted as they come."""
        reading = self._reading_head
        super().data_received(data)
        if not self._reading_head or self._rejected:
            return
        if self._timer is None:
            self._time_head()
        if reading:
            self._head_bytes += len(data)
            self._check_size()

    def on_message_begin(self) -> None:
        """A head begins; on a kept connection it is timed from here on."""
        if not self._reading_head:
            self._head_begins()
        super().on_message_begin()
        flow = self.flow  # without `self`, of which the scope is a part: reference cycles wait for the collector
        self.scope[CLIENT] = GatewayClient(lambda: flow.write_paused)  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        """End the head, and check its size."""
        self._head_ends()
        self._head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._check_size()
        if not self._rejected:
            if self.parser.get_http_version() == "1.0":
                self.transport.http_1_0, self.expect_100_continue = True, False  # type: ignore[attr-defined]
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Drop the body of a rejected head."""
        if not self._rejected:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Drop what follows a rejected head."""
        if not self._rejected:
            self.scope[CLIENT].complete = True  # type: ignore[literal-required]
            super().on_message_complete()
            self.flow.resume_reading()  # else a disconnect after a large body would not be noticed

    def on_response_complete(self) -> None:
        """A response is complete; one without a body has only its head to send."""
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more; returns whether it may still wait for a reply."""
        cycle = self.cycle
        unanswered = cycle is not None and not (cycle.more_body or cycle.response_started or self.pipeline)
        waits = unanswered and self.scheme == "http" and cycle.scope["http_version"] == "1.1"
        if waits:
            cycle.keep_alive = False
            self._probe(PROBE_SECONDS)
        return waits

    def _probe(self, seconds: float) -> None:
        """Send an interim response, and again after so many seconds; a client that has left answers with a reset."""
        if self.cycle.response_started or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        self.transport.write(_INTERIM)
        self.loop.call_later(seconds, self._probe, min(2 * seconds, LONGEST_PROBE))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected; after a reset, the last request's reply may be unread."""
        self._head_ends()
        client = self.cycle.scope.get(CLIENT) if self.cycle is not None else None
        if isinstance(client, GatewayClient):
            client.disconnect(reset=exc is not None)
        super().connection_lost(exc)

    def _head_begins(self) -> None:
        self._reading_head, self._head_bytes = True, 0

    def _time_head(self) -> None:
        self._timer = self.loop.call_later(self.limits.body_timeout, self._head_timed_out)

    def _head_timed_out(self) -> None:
        message = f"the request's head did not arrive within {self.limits.body_timeout:g} s"
        self._reject(ApiError(408, message, "head_timeout"))

    def _head_ends(self) -> None:
        self._reading_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_size(self) -> None:
        if self._head_bytes > self.limits.head_bytes:
            message = f"the request's head is larger than {self.limits.head_bytes} bytes"
            self._reject(ApiError(431, message, "head_too_large"))

    def _reject(self, error: ApiError) -> None:
        """Write an error response here, since there is no request yet, and close the connection."""
        self._rejected = True
        self._head_ends()
        if self.transport.is_closing():
            return
        body = orjson.dumps(error.body("openai"))
        head = f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
        rest = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(f"{head}{rest}".encode() + body)
        self.transport.close()


class Corked:
    """A transport that holds a response's head back until the first part of its body is written.

    Attributes:
        http_1_0: whether the client knows HTTP/1.0 alone: a body of unknown length then ends with the connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._unchunked = False
        self.http_1_0 = False

    def write(self, data: bytes) -> None:
        """Send data; a head is held back, unless it is interim (100 Continue)."""
        if self._head is None and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._unchunked = self.http_1_0 and _CHUNKED in data
            self._head = data.replace(_CHUNKED, b"") if self._unchunked else data
            return
        head, self._head = self._head or b"", None
        self._transport.write(head + (_without_sizes(data) if self._unchunked else data))

    def close(self) -> None:
        """Send what was held back, and close."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send what was held back."""
        if self._head is not None:
            self.write(b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _without_sizes(chunks: bytes) -> bytes:
    contents = []
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size, 16)
        contents.append(rest[:length])
        chunks = rest[length + 2 :]
    return b"".join(contents)


def connection_type(limits: Limits) -> type[GatewayConnection]:
    """Return the class of connections under these limits."""
    return type("GatewayConnection", (GatewayConnection,), {"limits": limits})

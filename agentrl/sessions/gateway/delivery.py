"""Sending a reply, and storing the turn only then.

A reply counts as sent when its last byte was written to the transport while the client was still connected. A
client that disconnects before that aborts the generation, and nothing is stored: its retry gets a new sample. A
connection whose client doesn't read is closed: as with a lost one, it is unknown what was received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentrl.common.concurrency import current_task
from agentrl.errors import StoreError
from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.api_error import ApiError, Style, api_error_for
from agentrl.sessions.gateway.wire.sse import event
from agentrl.types import OVERLONG, FinishReason, Status

CLIENT = "agentrl.client"
"""The key in a request's scope of its `GatewayClient`, where the server reports disconnects; other servers are
polled."""
HEADER_LENGTH = 1000
"""Characters of the header that lists the ignored fields."""
log = logging.getLogger("agentrl.gateway")

Reply = Callable[[Exchange], bytes]
Stream = Callable[[Exchange], AsyncIterator[bytes]]


class GatewayClient:
    """The sender of a request: `on_disconnect` is called when it disconnects, `on_reset` when it resets the connection.

    Args:
        paused: whether sending may have to wait until the client has read what was sent before.

    Attributes:
        disconnected: whether the client has closed the connection.
        complete: whether all of the request has arrived.
    """

    __slots__ = ("complete", "disconnected", "on_disconnect", "on_reset", "paused")

    def __init__(self, paused: Callable[[], bool] = lambda: True) -> None:
        self.disconnected = False
        self.complete = False
        self.paused = paused
        self.on_disconnect: Callable[[], object] | None = None
        self.on_reset: Callable[[], object] | None = None

    def disconnect(self, *, reset: bool = False) -> None:
        """Note that the client has disconnected."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        if reset and self.on_reset is not None:
            self.on_reset()


class Delivery(Response):
    """Runs an exchange and writes its reply.

    Args:
        gateway: counts the requests in progress, and stores.
        entry: the session.
        exchange: the request.
        reply: writes the reply at once.
        stream: writes it as events.
        style: of the protocol's errors.
    """

    def __init__(
        self, gateway: Gateway, entry: SessionEntry, exchange: Exchange, reply: Reply, stream: Stream, style: Style
    ) -> None:
        super().__init__()
        self.gateway, self.entry, self.exchange, self.style = gateway, entry, exchange, style
        self.reply, self.stream = reply, stream
        self.began = False
        self.sent = False
        self.superseded = False
        self._client = GatewayClient()
        self._cancel: Callable[[], object] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Produce the reply, unless its client disconnects before that."""
        try:
            with count_request(self.gateway, self.entry):
                await self._deliver(scope, receive, send)
        except ApiError as too_many:
            self.entry.state.retries.note_unanswered(self.exchange.request)
            await send_error(send, too_many, self.style)
        finally:
            await self._save()  # a client that has its reply may send its next request meanwhile

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        known: GatewayClient | None = scope.get(CLIENT)
        self._client = known or GatewayClient()
        watching = None if known else asyncio.ensure_future(_watch(receive, self._client))
        task = current_task()
        self._cancel, self._client.on_disconnect = task.cancel, self._note_disconnect
        if self._client.disconnected:
            self._note_disconnect()
        try:
            await self._produce(send)
        except asyncio.CancelledError:
            if not self._client.disconnected or self.sent:
                raise
            self._uncancel()
        finally:
            self._client.on_disconnect = None
            self._cancel = lambda: None
            if watching is not None:
                watching.cancel()

    def _note_disconnect(self) -> None:
        """The client has disconnected: a reply that it will not receive is not generated further."""
        if not self.sent:
            self.entry.state.session.count("gateway/disconnects")
            self._cancel()

    async def _save(self) -> None:
        """Store what was sent, and the counters."""
        try:
            await self.gateway.save(self.entry.state)
        except StoreError:
            log.exception("session %s could not be stored", self.entry.state.session.id)

    async def _produce(self, send: Send) -> None:
        timed = self._with_timeout(send)
        exchange = self.exchange
        try:
            await self.gateway.store_keeps_up(self.entry.turn_timeout)
            await exchange.prepare(self._supersede)
            if exchange.request.stream:
                await self._events(timed)
            else:
                async for _ in exchange.events():
                    pass
                body = self.reply(exchange)
                await self._finish(timed, body, len(body))
        except asyncio.CancelledError:
            if not self.superseded:
                raise
            self._uncancel()
            await self._fail(timed, ApiError(410, "the session was closed, or the request repeated", "request_ended"))
        except SlowClient:
            self.entry.state.session.count("gateway/slow_readers")
        except Exception as failure:
            await self._fail(timed, self._note_failure(failure))  # not in a variable: its traceback has this frame
        finally:
            exchange.end()

    def _note_failure(self, failure: Exception) -> ApiError:
        """Note why the request failed; returns what the client is sent."""
        error = api_error_for(failure)
        state = self.entry.state
        state.truncated = error.code == "context_length_exceeded"
        if state.truncated and not state.session.turns:
            state.session.count(OVERLONG)
        if error.status >= 500:
            self.entry.state.session.count("gateway/failures")
        if error.status == 500:
            log.exception("a request failed")
        return error

    async def _events(self, send: Send) -> None:
        """Write the stream; its head is sent with the first event, so that earlier failures have an error status."""
        stream = self.stream(self.exchange)
        pending = b""
        try:
            async for data in stream:
                if self.began:
                    await send({"type": "http.response.body", "body": pending, "more_body": True})
                else:
                    await self._start(send, "text/event-stream")
                pending = data
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        await self._finish(send, pending)

    async def _start(self, send: Send, kind: str, length: int | None = None) -> None:
        headers = {} if length is None else {"content-length": str(length)}
        if self.exchange.request.ignored:
            headers["x-agentrl-ignored"] = ", ".join(sorted(self.exchange.request.ignored))[:HEADER_LENGTH]
        await _start(send, 200, kind, **headers)
        self.began = True

    async def _finish(self, send: Send, data: bytes, length: int | None = None) -> None:
        """Write the last part, or all of a reply of this length, if the client is still connected, and add the turn."""
        await asyncio.sleep(0)  # a disconnect is noticed here, which cancels this task
        if length is not None:
            await self._start(send, "application/json", length)
        await send({"type": "http.response.body", "body": data})
        self.sent = True
        state = self.entry.state
        if state.session.status is Status.OPEN:  # another request may have closed it just now
            nodes = self.exchange.commit()
            self._client.on_reset = self.exchange.note_lost
            state.truncated = any(node.finish_reason is FinishReason.LENGTH for node in nodes)
        self.exchange.end()

    async def _fail(self, send: Send, error: ApiError) -> None:
        if not self.began:
            await send_error(send, error, self.style)
        elif self.exchange.request.stream:
            body, responses = error.body(self.style), self.exchange.request.protocol == "responses"
            if responses:  # whose clients know an event by its type
                body |= {"type": "error", "code": error.code, "message": error.message, "param": error.param}
            name = "error" if self.style == "anthropic" or responses else None
            await send({"type": "http.response.body", "body": event(orjson.dumps(body), name)})

    def _uncancel(self) -> None:
        """Clear the cancellation: the task is the server's and continues."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    def _supersede(self) -> None:
        self.superseded = True
        self._cancel()

    def _with_timeout(self, send: Send) -> Send:
        limit = self.gateway.parts.limits.send_timeout

        async def timed(message: Any) -> None:
            if not self._client.paused():
                await send(message)
                return
            try:
                async with asyncio.timeout(limit):
                    await send(message)
            except TimeoutError:
                raise SlowClient from None

        return timed


class SlowClient(Exception):
    """A client has not read its reply in time."""


async def _watch(receive: Receive, client: GatewayClient) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client.disconnect()


async def _start(send: Callable[[Any], Awaitable[None]], status: int, kind: str, **headers: str) -> None:
    fields = {"content-type": kind, "cache-control": "no-store", **headers}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_error(send: Callable[[Any], Awaitable[None]], error: ApiError, style: Style) -> None:
    """Answer a request with an error."""
    body = orjson.dumps(error.body(style))
    await _start(send, error.status, "application/json", **error.headers, **{"content-length": str(len(body))})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def count_request(gateway: Gateway, entry: SessionEntry) -> Iterator[None]:
    """Count a request of a session as in progress meanwhile; ApiError where the limits allow no further one."""
    limits = gateway.parts.limits
    if entry.in_flight >= limits.session_in_flight:
        raise ApiError(429, "too many requests in this session", "session_busy", retry_after=1)
    if gateway.in_flight >= limits.in_flight:
        raise ApiError(429, "too many requests", "queue_full", retry_after=1)
    gateway.begun += 1
    gateway.in_flight += 1
    entry.in_flight += 1
    try:
        yield
    finally:
        gateway.in_flight -= 1
        entry.in_flight -= 1

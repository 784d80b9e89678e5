"""Calls to a role over one socket, from any thread or event loop.

A thread reads what comes and passes it on to the callers, so that blocking code (a trainer's ranks) and event loops
(sessions) use the same connection; another one sends, so that neither waits for a machine that takes nothing. What
arrives in one message goes to an event loop in one callback.

Frames are pickled: both ends are the same program. A connection over the network first proves on both sides that it
knows the worker's key (`authenticate`); nothing is unpickled before that. With `cluster.encrypted` it is a TLS
connection to the worker's own certificate (`encryption`).
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import queue
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from agentrl.cluster.wire.encryption import EncryptedSocket
from agentrl.cluster.wire.frames import CANCEL, encode, exactly, receive
from agentrl.errors import AgentRLError, DeadlineExceeded, InfraError

NONCE = 32
"""Bytes of a challenge, and of its answer."""
RAISED_BY = "raised by"
"""Begins the note that says which worker raised an error, and on which node."""
_CONNECT_SECONDS = 20.0


class MessageKind(IntEnum):
    """The kind of a message about a call: one item of several, the end, or an error."""

    ITEM = 0
    DONE = 1
    FAILED = 2


Message = tuple[MessageKind, Any]


@dataclass(frozen=True)
class Address:
    """A worker's address, the key that proves who may call it, and its certificate where it listens with TLS."""

    name: str
    host: str
    port: int
    key: bytes
    certificate: str | None = None

    def __repr__(self) -> str:
        return f"{self.name} at {self.host}:{self.port}"


class Inbox(ABC):
    """Receives the messages of one call."""

    @abstractmethod
    def put(self, messages: list[Message]) -> None:
        """Receive messages; called by the reading thread."""


class ThreadInbox(Inbox):
    """An inbox for a caller that blocks."""

    def __init__(self) -> None:
        self._queue = queue.SimpleQueue[Message]()

    def put(self, messages: list[Message]) -> None:
        for message in messages:
            self._queue.put(message)

    def get(self, what: str, deadline: float | None) -> Message:
        """The next message, or DeadlineExceeded."""
        try:
            return self._queue.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise DeadlineExceeded(f"{what} ran past its deadline") from None


class LoopInbox(Inbox):
    """An inbox for a coroutine of the running event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue = asyncio.Queue[Message]()

    def put(self, messages: list[Message]) -> None:
        deliver([(self, messages)], self.loop)

    async def get(self, what: str, deadline: float | None) -> Message:
        """The next message, or DeadlineExceeded."""
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return await self.queue.get()
        except TimeoutError:
            raise DeadlineExceeded(f"{what} ran past its deadline") from None


def deliver(batch: list[tuple[LoopInbox, list[Message]]], loop: asyncio.AbstractEventLoop) -> None:
    """Put messages into the inboxes of an event loop, from another thread, in one callback."""

    def put() -> None:
        for inbox, messages in batch:
            for message in messages:
                inbox.queue.put_nowait(message)

    with suppress(RuntimeError):  # the loop has ended, and with it the callers
        loop.call_soon_threadsafe(put)


class Calling(ABC):
    """The calls that a worker and a connection to one have in common.

    A call's `timeout` is in seconds from now; None waits as long as the worker lives. A caller that gives up (by its
    deadline, by being cancelled, by leaving a stream early) cancels the call in the worker.
    """

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """The connection that the calls go over."""

    def run(self, method: str, *arguments: Any, timeout: float | None) -> Any:
        """Call a method and block until its result; raises as `stream` does."""
        for kind, value in self._receive(method, arguments, timeout):
            if kind is MessageKind.DONE:
                return value
        raise AssertionError("a call ends with its result or an error")

    def iterate(self, method: str, *arguments: Any, timeout: float | None) -> Iterator[Any]:
        """`stream` for a caller that blocks."""
        with closing(self._receive(method, arguments, timeout)) as messages:
            for kind, value in messages:
                if kind is MessageKind.ITEM:
                    yield value

    def _receive(
        self, method: str, arguments: tuple[Any, ...], timeout: float | None
    ) -> Generator[Message, None, None]:
        inbox, deadline = ThreadInbox(), None if timeout is None else time.monotonic() + timeout
        number, ended = self.connection.begin(method, arguments, inbox), False
        try:
            while not ended:
                message = inbox.get(f"{self.connection.name}: {method}", deadline)
                ended = message[0] is not MessageKind.ITEM
                yield raise_if_error(message)
        finally:
            self.connection.leave(number, cancel=not ended)

    async def call(self, method: str, *arguments: Any, timeout: float | None) -> Any:
        """Call a method and return its result; raises as `stream` does."""
        async with aclosing(self._messages(method, arguments, timeout)) as messages:
            async for kind, value in messages:
                if kind is MessageKind.DONE:
                    return value
        raise AssertionError("a call ends with its result or an error")

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method, and wait neither for its result nor for its error."""
        self.connection.send_call(method, arguments)

    async def stream(self, method: str, *arguments: Any, timeout: float | None) -> AsyncGenerator[Any, None]:
        """Call a method that yields.

        Raises:
            AgentRLError: the role raised it.
            InfraError: it raised something else, with its traceback and the worker's node; or the worker died.
            DeadlineExceeded: the call took longer than `timeout`.
        """
        async with aclosing(self._messages(method, arguments, timeout)) as messages:
            async for kind, value in messages:
                if kind is MessageKind.ITEM:
                    yield value

    async def _messages(
        self, method: str, arguments: tuple[Any, ...], timeout: float | None
    ) -> AsyncGenerator[Message, None]:
        inbox, deadline = LoopInbox(), None if timeout is None else time.monotonic() + timeout
        number, ended = self.connection.begin(method, arguments, inbox), False
        try:
            while not ended:
                message = await inbox.get(f"{self.connection.name}: {method}", deadline)
                ended = message[0] is not MessageKind.ITEM
                yield raise_if_error(message)
        finally:
            self.connection.leave(number, cancel=not ended)


def raise_if_error(message: Message) -> Message:
    """A message that is no error; an error is raised."""
    if message[0] is MessageKind.FAILED:
        raise message[1]
    return message


class Connection(Calling):
    """One socket to a worker.

    Args:
        sock: connected, and authenticated where it needs to be.
        name: the worker's, for messages.
        why: called when the connection ends: the error for open calls; may wait a few seconds.

    Attributes:
        ended: the error with which the connection ended.
    """

    def __init__(self, sock: socket.socket | EncryptedSocket, name: str, why: Callable[[], InfraError]) -> None:
        self.name, self._socket, self._why = name, sock, why
        self.ended: Future[InfraError] = Future()
        self._numbers = itertools.count()
        self._inboxes: dict[int, Inbox] = {}
        self._outbox = queue.SimpleQueue[bytes | None]()
        self._closed: InfraError | None = None
        threading.Thread(target=self._write, name=f"sending to {name}", daemon=True).start()
        self._thread = threading.Thread(target=self._read, name=f"calls to {name}", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> Connection:
        return self

    def begin(self, method: str, arguments: tuple[Any, ...], inbox: Inbox) -> int:
        """Send a call, whose messages go to `inbox`; returns its number."""
        number = next(self._numbers)
        self._inboxes[number] = inbox
        if self.ended.done():
            inbox.put([(MessageKind.FAILED, self._fresh())])
        else:
            self._send((number, method, arguments))
        return number

    def send_call(self, method: str, arguments: tuple[Any, ...]) -> None:
        """Send a call whose messages nobody wants."""
        if not self.ended.done():
            self._send((next(self._numbers), method, arguments))

    def leave(self, number: int, cancel: bool) -> None:
        """Receive no more of a call; `cancel`: abort it."""
        if self._inboxes.pop(number, None) is not None and cancel and not self.ended.done():
            self._send((number, CANCEL, ()))

    def close(self, error: InfraError | None = None) -> None:
        """Close the socket; open calls get `error`. Idempotent."""
        self._closed = self._closed or error or InfraError(f"the connection to {self.name} was closed")
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CONNECT_SECONDS)
        self._socket.close()

    def _send(self, message: Any) -> None:
        self._outbox.put(encode(message))

    def _write(self) -> None:
        with suppress(OSError):  # the reading thread notices, and ends all calls
            while (data := self._outbox.get()) is not None:
                self._socket.sendall(data)

    def _fresh(self) -> InfraError:
        """The error of this connection's end; many may raise it, and each would add its own traceback."""
        return self.ended.result().with_traceback(None)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._dispatch(receive(self._socket))
        self._outbox.put(None)
        self.ended.set_result(self._closed or self._why())
        for inbox in list(self._inboxes.values()):
            inbox.put([(MessageKind.FAILED, self._fresh())])

    def _dispatch(self, messages: list[tuple[int, MessageKind, Any]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[LoopInbox, list[Message]]]] = {}
        for number, kind, value in messages:
            inbox = self._inboxes.get(number)
            if isinstance(inbox, LoopInbox):
                by_loop.setdefault(inbox.loop, []).append((inbox, [(kind, value)]))
            elif inbox is not None:
                inbox.put([(kind, value)])
        for loop, batch in by_loop.items():
            deliver(batch, loop)


# ---------------------------------------------------------------------------------- over the network


def connect(address: Address, why: Callable[[], InfraError] | None = None) -> Connection:
    """A connection to a worker's address, from any process that knows it.

    Raises:
        InfraError: nobody answers there, or not with the worker's key.
    """
    try:
        sock: socket.socket | EncryptedSocket
        sock = plain = socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS)
    except OSError as error:
        raise InfraError(f"{address} can't be reached: {error}") from None
    try:
        _keep_alive(plain)
        if address.certificate is not None:
            sock = EncryptedSocket(plain, address.certificate)
        theirs, ours = exactly(sock, NONCE), secrets.token_bytes(NONCE)
        sock.sendall(answer(address.key, b"client", theirs) + ours)
        if not hmac.compare_digest(exactly(sock, NONCE), answer(address.key, b"worker", ours)):
            raise InfraError(f"{address}: what answers does not know the worker's key")
        sock.settimeout(None)
    except (OSError, EOFError) as error:
        plain.close()
        raise InfraError(f"{address} refused the connection: {type(error).__name__}: {error}") from None
    except InfraError:
        plain.close()
        raise
    return Connection(sock, address.name, why or (lambda: InfraError(f"the connection to {address} was lost")))


def _keep_alive(sock: socket.socket) -> None:
    """Send at once; and have the kernel end an idle connection whose other end does not answer for half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def answer(key: bytes, side: bytes, nonce: bytes | bytearray) -> bytes:
    """Return the proof that a side knows the key: HMAC-SHA256 (RFC 2104) of the other side's challenge."""
    return hmac.digest(key, side + nonce, "sha256")


async def authenticate(key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """The worker's side: whether the client knows the key; it is told that the worker does."""
    nonce = secrets.token_bytes(NONCE)
    writer.write(nonce)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reply = await reader.readexactly(2 * NONCE)
    except (TimeoutError, EOFError, OSError):
        return False
    if not hmac.compare_digest(reply[:NONCE], answer(key, b"client", nonce)):
        return False
    writer.write(answer(key, b"worker", reply[NONCE:]))
    return True


def make_error(error: BaseException, where: str, trace: str) -> AgentRLError:
    """The error that a caller gets: the role's own where it is an AgentRLError, else with its traceback.

    `where` stands in it, as a note of one that is the role's own.
    """
    if not isinstance(error, AgentRLError):
        return InfraError(f"{where} failed:\n{trace}")
    if not any(note.startswith(RAISED_BY) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{RAISED_BY} {where}")
    return error


class Link:
    """A connection to a worker, made when it is needed; for coroutines of one event loop."""

    def __init__(self, address: Address) -> None:
        self._address, self._making = address, asyncio.Lock()
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        """The connection; InfraError where nobody answers there, or not with the worker's key."""
        async with self._making:
            if self._connection is None or self._connection.ended.done():
                self._connection = await asyncio.to_thread(connect, self._address)
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

"""The client of a resident runner: many commands at once over one stream.

Every method runs on the sandboxes' loop. A command is a `Channel`; its output is bounded by the runner, and a
flow-controlled one (`Flags.STREAM`) is read through `chunks`. When the stream ends or is corrupt, every open channel
fails with SandboxDied, an infrastructure failure.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from agentrl.common.concurrency import take_error
from agentrl.errors import ConfigError, SandboxError
from agentrl.tools.sandbox.base import BUSY, SandboxDied
from agentrl.tools.sandbox.runner import wire
from agentrl.tools.sandbox.runner.transport import ByteStream
from agentrl.tools.sandbox.runner.wire import CommandKind, Flags, Frame

T = TypeVar("T")
CREDIT = 256 << 10
"""Bytes of a command's input, and of its streamed output, that are in flight."""
PIECE = 60 << 10


class Channel:
    """One running command, as its runner's client sees it."""

    def __init__(self, client: RunnerClient, number: int) -> None:
        self.number = number
        self.exit: asyncio.Future[wire.Exit] = asyncio.get_running_loop().create_future()
        self.exit.add_done_callback(take_error)
        self.late: asyncio.Future[wire.How] = asyncio.get_running_loop().create_future()
        self.outputs = (bytearray(), bytearray())
        self.reports: asyncio.Queue[bytes] = asyncio.Queue()
        self.head = 0
        self._client = client
        self._flags = Flags.NONE
        self._stream: asyncio.Queue[bytes] = asyncio.Queue()
        self._in_flight = 0
        self._acknowledged = asyncio.Event()

    async def feed(self, data: bytes) -> None:
        """Write to the command's standard input, with flow control; input after its end is dropped."""
        for at in range(0, len(data), PIECE):
            while self._in_flight >= CREDIT and not self.exit.done():
                self._acknowledged.clear()
                await self._acknowledged.wait()
            if self.exit.done():
                return
            piece = data[at : at + PIECE]
            self._in_flight += len(piece)
            self._client.send(self.number, Frame.STDIN, piece)

    def end_input(self) -> None:
        """Close the command's standard input."""
        self._client.send(self.number, Frame.STDIN_EOF)

    def signal(self, number: int) -> None:
        if not self.exit.done():
            self._client.send(self.number, Frame.SIGNAL, struct.pack("<I", number))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Stream the command's standard output."""
        while True:
            chunk = await self._stream.get()
            if not chunk:
                return
            self._client.send(self.number, Frame.WINDOW, struct.pack("<Q", len(chunk)))
            yield chunk

    def limit(self, seconds: float) -> asyncio.Future[wire.How]:
        """Begin to count the command's time anew, and return what is done with TIMED_OUT or STARVED when it is up.

        Args:
            seconds: that it has; 0 ends the counting.
        """
        self.late.cancel()
        self.late = asyncio.get_running_loop().create_future()
        if not self.exit.done():
            self._client.send(self.number, Frame.LIMIT, struct.pack("<Q", int(seconds * 1e6)))
        return self.late

    async def wait_within(self, answer: asyncio.Future[T], seconds: float, grace: float) -> T:
        """Wait for what the runner sends at the end of a limit or before; on a busy machine `BUSY` times as late.

        Args:
            answer: what it sends.
            seconds: the limit.
            grace: seconds that the runner has to answer.

        Raises:
            SandboxDied: the runner does not answer; it is given up.
        """
        last = time.monotonic() + BUSY * seconds + grace
        done, _ = await asyncio.wait({answer}, timeout=seconds + grace)
        while not done:
            if time.monotonic() > last or not await self._client.ping(grace):
                self._client.fail(f"the sandbox did not answer {grace:g} s after a command's limit")
                raise SandboxDied(self._client.lost)
            done, _ = await asyncio.wait({answer}, timeout=max(grace, 1.0))
        return answer.result()

    def handle(self, kind: Frame, payload: bytes) -> None:
        """Handle a frame for this channel."""
        if kind is Frame.OUT and self._flags & Flags.STREAM:
            self._stream.put_nowait(payload)
        elif kind is Frame.OUT:
            self.outputs[0].extend(payload)
        elif kind is Frame.ERR:
            self.outputs[1].extend(payload)
        elif kind is Frame.REPORT:
            self.reports.put_nowait(payload)
        elif kind is Frame.ACK:
            self._in_flight -= struct.unpack("<Q", payload)[0]
            self._acknowledged.set()
        elif kind is Frame.WAITED:
            self._client.waited += struct.unpack("<Q", payload)[0] / 1e6
        elif kind is Frame.LATE and not self.late.done():
            self.late.set_result(wire.How(payload[0]))
        elif kind is Frame.EXIT:
            self.finish(wire.read_exit(payload))

    def finish(self, end: wire.Exit | SandboxError) -> None:
        """Set the result, or the error."""
        if not self.exit.done():
            if isinstance(end, SandboxError):
                self.exit.set_exception(end)
            else:
                self.exit.set_result(end)
        self._stream.put_nowait(b"")
        self.reports.put_nowait(b"")
        self._acknowledged.set()


class RunnerClient:
    """The runner of one sandbox.

    Attributes:
        last_frame: when its last frame came, in seconds since 1970.
        lost: why the runner was lost; None while it is connected.
        waited: seconds that commands have waited for a processor, which does not count towards their limits.
        on_accept: called with the channel of each accepted connection.
        on_lost: called with the reason when the runner is lost.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._nonce = secrets.randbits(63) + 1
        self._decoder = wire.Decoder(self._nonce)
        self._channels: dict[int, Channel] = {}
        self._next = 1
        self._answers: dict[tuple[Frame, int], asyncio.Future[bytes]] = {}
        self._beat: asyncio.TimerHandle | None = None
        self.lost: str | None = None
        self.waited = 0.0
        self.last_frame = time.time()
        self.on_accept: Callable[[Channel], None] | None = None
        self.on_lost: Callable[[str], None] | None = None
        stream.on_bytes = self._receive
        stream.on_lost = self.fail

    def hello(self, lease: float) -> asyncio.Future[bytes]:
        """Send the hello frame; done when the runner answers, with ConfigError where it is another version's.

        The runner exits after `lease` seconds without a frame.
        """
        answer = self._request(Frame.READY, 0, Frame.HELLO, struct.pack("<II", wire.PROTOCOL, int(lease * 1000)))
        self._keep_alive(lease / 3)
        return answer

    def _keep_alive(self, interval: float) -> None:
        self._beat = asyncio.get_running_loop().call_later(interval, self._keep_alive, interval)
        if not self.lost:
            self.send(0, Frame.PING)

    async def ping(self, timeout: float) -> bool:
        """Return whether the runner answers in time."""
        if self.lost:
            return False
        number = self._number()
        try:
            await asyncio.wait_for(self._request(Frame.PONG, number, Frame.PING), timeout)
        except (TimeoutError, SandboxError):
            return False
        return True

    async def listen(self, port: int) -> None:
        """Accept connections on the sandbox's own loopback address; each becomes a channel for `on_accept`."""
        answer = await self._request(Frame.LISTEN, self._number(), Frame.LISTEN, struct.pack("<I", port))
        code = struct.unpack("<I", answer)[0]
        if code:
            raise SandboxError(f"the runner could not listen on port {port} (errno {code})")

    def run(
        self,
        argv: Sequence[str | bytes],
        *,
        kind: CommandKind = CommandKind.RUN,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        flags: Flags = Flags.NONE,
        timeout: float = 0.0,
        limit: int = 0,
        mode: int = 0,
    ) -> Channel:
        """Start a command.

        Raises:
            SandboxDied: the runner was lost.
            ValueError: the command can't be put into a frame.
        """
        if self.lost:
            raise SandboxDied(self.lost)
        channel = Channel(self, self._number())
        channel._flags = flags
        channel.head = CREDIT if flags & Flags.STREAM else limit - limit // 2
        payload = wire.command(
            kind, argv, cwd=cwd, env=env, flags=flags, timeout=timeout, head=channel.head, tail=limit // 2, mode=mode
        )
        self._channels[channel.number] = channel
        self.send(channel.number, Frame.EXEC, payload)
        return channel

    def send(self, channel: int, kind: Frame, payload: bytes = b"") -> None:
        """Send one frame to the runner."""
        self._stream.send(wire.frame(self._nonce, channel, kind, payload))

    def fail(self, reason: str) -> None:
        """Mark the runner as lost: everything that waits for it fails."""
        if self.lost:
            return
        self.lost = reason
        if self._beat:
            self._beat.cancel()
        for channel in list(self._channels.values()):
            channel.finish(SandboxDied(reason))
        self._channels.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(SandboxDied(reason))
        self._answers.clear()
        self._stream.close()
        if self.on_lost:
            self.on_lost(reason)

    async def kill_all(self, timeout: float) -> None:
        """Kill every running command, and wait until they have ended."""
        running = list(self._channels.values())
        for channel in running:
            channel.signal(9)
        if running:
            await asyncio.wait([channel.exit for channel in running], timeout=timeout)

    def close(self) -> None:
        self.fail("the sandbox is closed")

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _request(self, expected: Frame, number: int, kind: Frame, payload: bytes = b"") -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(take_error)
        if self.lost:
            answer.set_exception(SandboxDied(self.lost))
            return answer
        self._answers[expected, number] = answer
        answer.add_done_callback(lambda _: self._answers.pop((expected, number), None))
        self.send(number, kind, payload)
        return answer

    def _receive(self, data: bytes) -> None:
        self.last_frame = time.time()
        try:
            for number, kind, payload in self._decoder.feed(data):
                self._dispatch(number, kind, payload)
        except (SandboxError, struct.error, ValueError) as error:
            self.fail(str(error))

    def _dispatch(self, number: int, kind: Frame, payload: bytes) -> None:
        answer = self._answers.get((kind, number))
        if answer is not None:
            spoken = struct.unpack_from("<I", payload)[0] if kind is Frame.READY else wire.PROTOCOL
            if not answer.done() and spoken != wire.PROTOCOL:
                words = f"the image's runner is of another agentrl (its protocol is {spoken}, not {wire.PROTOCOL})"
                answer.set_exception(ConfigError(f"{words}: make the image anew, or set runner='mount'"))
            elif not answer.done():
                answer.set_result(payload)
        elif kind is Frame.ACCEPT and self.on_accept:
            channel = Channel(self, number)
            channel._flags = Flags.STREAM
            self._channels[number] = channel
            self.on_accept(channel)
        elif channel_or_none := self._channels.get(number):
            channel_or_none.handle(kind, payload)
            if kind is Frame.EXIT:
                del self._channels[number]

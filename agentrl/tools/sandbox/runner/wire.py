"""Frames between the controller and the resident runner: nonce, channel, type, length, payload (little endian).

Pure: bytes in, bytes out. `sandboxes/runner/runner.h` defines the same numbers for the runner.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

from agentrl.errors import SandboxError

PROTOCOL = 3
HEADER = struct.Struct("<QIII")
COMMAND = struct.Struct("<BBHIQQQII")
EXIT = struct.Struct("<BBBxiQQQQQ")
MAX_IN = 1 << 20  # the runner's longest frame; a longer argument vector than this can't be executed anyway
MAX_OUT = 1 << 17  # the longest frame of the runner; a longer one means that the stream is corrupt


class Frame(IntEnum):
    """The kinds of a frame."""

    HELLO, EXEC, STDIN, STDIN_EOF, SIGNAL, WINDOW, PING, LISTEN, LIMIT = range(1, 10)
    READY, OUT, ERR, REPORT, EXIT, ACK, PONG, ACCEPT, LATE, WAITED = range(65, 75)


class CommandKind(IntEnum):
    """The kind of a command: a program, or something that the runner does itself."""

    RUN, READ_FILE, WRITE_FILE, TAR_OUT, TAR_IN, WIPE, DESCRIBE = range(7)


class Flags(IntFlag):
    """The connections of a command: its streams and reports."""

    NONE = 0
    STREAM = 1  # standard output is flow-controlled and complete, instead of cut
    REPORT = 2  # descriptor 3 marks points between its outputs
    STDIN = 4


class How(IntEnum):
    """The way in which a command ended."""

    EXITED, SIGNALED, TIMED_OUT, NOT_STARTED, STARVED = range(5)


class Exit(NamedTuple):
    """The payload of an EXIT frame."""

    how: How
    out_of_memory: bool
    phase: int
    code: int
    seconds: float
    stdout_dropped: int
    stderr_dropped: int


def frame(nonce: int, channel: int, kind: Frame, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    return HEADER.pack(nonce, channel, kind, len(payload)) + payload


def command(
    kind: CommandKind,
    argv: Sequence[str | bytes],
    *,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    flags: Flags = Flags.NONE,
    timeout: float = 0.0,
    head: int = 0,
    tail: int = 0,
    mode: int = 0,
) -> bytes:
    """An EXEC frame's payload.

    Raises:
        ValueError: a NUL or a lone surrogate in an argument, or more than a frame holds.
    """
    variables = [f"{key}={value}" for key, value in (env or {}).items()]
    strings = [encode(text) for text in (cwd, *argv, *variables)]
    fixed = COMMAND.pack(kind, flags, 0, mode, int(timeout * 1e6), head, tail, len(argv), len(variables))
    payload = fixed + b"\0".join(strings) + b"\0"
    if len(payload) > MAX_IN:
        raise ValueError(f"command too long: {len(payload)} bytes, at most {MAX_IN}")
    return payload


def encode(text: str | bytes) -> bytes:
    """An argument's bytes, as the kernel takes them; ValueError where it holds a NUL or a lone surrogate."""
    try:
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise ValueError(f"lone surrogate in {text[:80]!a}") from None
    if b"\0" in data:
        raise ValueError(f"NUL character in {text[:80]!a}")
    return data


def read_exit(payload: bytes) -> Exit:
    """Read an EXIT frame's payload."""
    how, oom, phase, code, micros, _, out_dropped, _, err_dropped = EXIT.unpack(payload)
    return Exit(How(how), bool(oom), phase, code, micros / 1e6, out_dropped, err_dropped)


class Decoder:
    """Frames out of a byte stream, however it is split. A frame that is not the runner's makes the stream corrupt."""

    def __init__(self, nonce: int) -> None:
        self._nonce = nonce
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Frame, bytes]]:
        """Take bytes; yield (channel, type, payload).

        Raises:
            SandboxError: a wrong nonce, an unknown type or an impossible length.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= HEADER.size:
            nonce, channel, kind, length = HEADER.unpack_from(buffer, at)
            if nonce != self._nonce or length > MAX_OUT:
                raise SandboxError("the runner's stream is corrupt: another process wrote to it")
            if len(buffer) - at < HEADER.size + length:
                break
            start = at + HEADER.size
            at = start + length
            try:
                known = Frame(kind)
            except ValueError:
                raise SandboxError(f"the runner sent a frame of unknown type {kind}") from None
            yield channel, known, bytes(buffer[start:at])
        del buffer[:at]


class Demultiplexer:
    """Docker's attach stream to the two outputs in it: (1 or 2, bytes), from 8-byte headers and their payloads."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 1
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take bytes; yield (stream, payload)."""
        at = 0
        while at < len(data):
            if not self._left:
                take = min(8 - len(self._header), len(data) - at)
                self._header += data[at : at + take]
                at += take
                if len(self._header) < 8:
                    return
                self._stream, self._left = struct.unpack(">BxxxI", self._header)
                self._header.clear()
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            yield self._stream, piece

"""The stream to a runner: a Docker daemon's attach socket, or a child process's pipes.

Both are asyncio protocols. The attach request is not made through docker-py, whose socket is private and blocks: it is
one HTTP request that upgrades the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.errors import ConfigError
from agentrl.tools.sandbox.base import DaemonError
from agentrl.tools.sandbox.runner.wire import Demultiplexer

logger = logging.getLogger(__name__)

DEFAULT_DAEMON = "unix:///var/run/docker.sock"
Receive = Callable[[bytes], None]
Lost = Callable[[str], None]


class ByteStream:
    """Bytes to and from a runner. The reader sets `on_bytes` and `on_lost`."""

    def __init__(self) -> None:
        self.on_bytes: Receive = lambda data: None
        self.on_lost: Lost = lambda reason: None
        self._transport: Any = None
        self._early = bytearray()

    def send(self, data: bytes) -> None:
        """Queue bytes for the runner; dropped where the stream has ended (`on_lost` was called)."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the stream; the runner exits."""
        if self._transport is not None:
            self._transport.abort()


class AttachStream(ByteStream, asyncio.Protocol):
    """A container's standard streams, through the daemon."""

    def __init__(self) -> None:
        super().__init__()
        self._head: bytearray | None = bytearray()
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts = Demultiplexer()

    @classmethod
    async def open(cls, daemon: str, version: str, container: str) -> AttachStream:
        """Attach to a container, running or not started yet.

        Raises:
            DaemonError: the daemon does not answer or refuses.
        """
        loop = asyncio.get_running_loop()
        kind, address, tls = daemon_address(daemon)
        try:
            if kind == "unix":
                _, stream = await loop.create_unix_connection(cls, address)
            else:
                host, _, port = address.rpartition(":")
                _, stream = await loop.create_connection(cls, host, int(port), ssl=tls)
        except OSError as error:
            raise DaemonError(f"no Docker daemon at {daemon}: {error}") from None
        target = f"/v{version}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        lines = [f"POST {target} HTTP/1.1", "Host: docker", "Connection: Upgrade", "Upgrade: tcp", "Content-Length: 0"]
        stream.send("\r\n".join([*lines, "", ""]).encode())
        try:
            await stream._upgraded
        except BaseException:
            stream.close()
            raise
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, found, rest = bytes(self._head).partition(b"\r\n\r\n")
            if not found:
                return
            self._head = None
            status = head.split(b"\r\n", 1)[0].decode(errors="replace")
            if b" 101 " not in head[:20]:
                message = f"the daemon refused to attach: {status} {rest[:300].decode(errors='replace')}"
                self._fail(DaemonError(message))
                return
            if not self._upgraded.done():
                self._upgraded.set_result(None)
            data = rest
        for stream, piece in self._parts.feed(data):
            if stream == 1:
                self.on_bytes(piece)
            else:
                logger.debug("the runner's standard error: %s", piece.decode(errors="replace").strip())

    def connection_lost(self, error: Exception | None) -> None:
        reason = f"the connection to the container ended{f': {error}' if error else ''}"
        self._fail(DaemonError(reason))
        self.on_lost(reason)

    def _fail(self, error: DaemonError) -> None:
        if not self._upgraded.done():
            self._upgraded.set_exception(error)


class PipeStream(ByteStream, asyncio.SubprocessProtocol):
    """A runner that is a child process."""

    @classmethod
    async def open(cls, program: Path, cwd: Path, env: dict[str, str]) -> PipeStream:
        """Start the runner, and return its stream."""
        loop = asyncio.get_running_loop()
        _, stream = await loop.subprocess_exec(cls, str(program), cwd=cwd, env=env, stderr=None, start_new_session=True)
        return stream

    @property
    def pid(self) -> int:
        """The runner's process id."""
        return self._process.get_pid()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport
        self._transport = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self.on_bytes(data)

    def process_exited(self) -> None:
        self.on_lost(f"the runner ended with status {self._process.get_returncode()}")
        self._process.close()

    def close(self) -> None:
        """Kill the runner; everything that it started is killed with it."""
        if self._process.get_returncode() is None:
            self._process.kill()


def daemon_address(daemon: str | None = None) -> tuple[str, str, ssl.SSLContext | None]:
    """Return the daemon's address: ("unix", path, None) or ("tcp", "host:port", TLS context or None).

    Raises:
        ConfigError: an address of a kind that streams can't be opened to (ssh, a Windows pipe).
    """
    text = daemon or default_daemon()
    parts = urlsplit(text)
    if parts.scheme in ("unix", "http+unix"):
        return "unix", parts.path or parts.netloc, None
    if parts.scheme not in ("tcp", "http", "https"):
        raise ConfigError(f"daemon {text!r}: only unix:// and tcp:// addresses can be attached to")
    tls = None
    if parts.scheme == "https" or os.environ.get("DOCKER_TLS_VERIFY"):
        certificates = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
        tls = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        tls.load_cert_chain(str(certificates / "cert.pem"), str(certificates / "key.pem"))
    return "tcp", f"{parts.hostname}:{parts.port or (2376 if tls else 2375)}", tls


def default_daemon() -> str:
    """DOCKER_HOST, or the default socket."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_DAEMON

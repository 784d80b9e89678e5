"""A server process that belongs to us: started, watched, and ended with everything that it started itself.

It runs in a process group of its own, behind `guard`, so that neither our end nor a kill -9 leaves anything
behind on the machine. Its output goes to a file; when it dies, the file's last lines are in the error, because
that is where the reason stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from agentrl.cluster import forking, guard, prefork
from agentrl.common import cores, processes
from agentrl.errors import EngineError

TAIL_LINES = 30
"""The number of the log's last lines that an error shows."""
OURS = Path(os.devnull)
"""The log of a server that writes to this process's output and errors: there is none to read."""
_TAIL_BYTES = 1 << 16
_POLL_SECONDS = 0.2
_CAUSE = re.compile(r"\b[A-Z]\w*(Error|Exception): \S")
_CAUSES = 5
SHARED_MEMORY = "/dev/shm/"
MOST_BOUND = 64
"""The number of ports that stay bound for servers; those that were given out before are left to the servers alone."""
_bound = deque[socket.socket]()
Segment = tuple[str, int]
"""A file's path, and its inode."""


def free_port(host: str = "127.0.0.1") -> int:
    """A free port for a server that is about to start.

    On Linux it stays bound here, so that nobody else is given it before the server listens, which may take a minute.
    The server has to set SO_REUSEADDR, as servers do.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, 0))
    port: int = sock.getsockname()[1]
    _bound.append(sock)
    while len(_bound) > (MOST_BOUND if sys.platform == "linux" else 0):
        _bound.popleft().close()
    return port


async def probe_until(probe: Callable[[], Awaitable[bool]], exit_status: Callable[[], int | None], end: float) -> bool:
    """Probe a server until it is ready (True), has ended, or `end` has come, in seconds of `time.monotonic()`."""
    while exit_status() is None:
        if await probe():
            return True
        if time.monotonic() > end:
            break
        await asyncio.sleep(_POLL_SECONDS)
    return False


class ServerProcess:
    """A running server process.

    Args:
        name: what errors call it.
        command: its command line.
        env: added to this process's environment.
        threads: CPU threads of each of its processes; None leaves them to it, or to the user's OMP_NUM_THREADS.
        log: where its output goes; None is a temporary file that goes with it, `OURS` where this process's goes.
        descriptors: open files that it gets under the same numbers.
        kind: what it is, for `agentrl.common.processes`.
        folder: its working directory; None is this process's.
        modules: where it may be forked as `prefork` does, what it loads; its command is a worker's.
        prefork_name: by which process, as `prefork.start` takes it.
        apart: the same, as `Role` has it.

    Raises:
        EngineError: the command could not be started at all.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        threads: int | None = None,
        descriptors: Sequence[int] = (),
        kind: str = "engine",
        folder: str | None = None,
        modules: Sequence[str] | None = None,
        prefork_name: str | None = None,
        apart: str = "",
    ) -> None:
        self.name, self.command = name, list(command)
        self._keep, self._segments = log is not None, set[Segment]()
        if log is None:
            handle, path = tempfile.mkstemp(prefix=f"agentrl-{name}-", suffix=".log")
            os.close(handle)
            log = Path(path)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        whole = {**cores.environment(threads), "PYTHONUNBUFFERED": "1", **(env or {})}
        register = partial(processes.register, role=kind)
        self._process: subprocess.Popen[bytes] | prefork.Forked
        try:
            with open(log, "ab") as sink:
                streams = (None, None) if log is OURS else (sink, subprocess.STDOUT)
                forked = None
                if modules is not None:
                    start = forking.ForkRequest(f"agentrl {kind}", list(modules), whole, folder or os.getcwd(), apart)
                    output = sink.fileno()
                    forked = prefork.start(start, output, output, descriptors[0], register, prefork_name)
                self._process = forked or subprocess.Popen(
                    [sys.executable, guard.__file__, *command],
                    stdin=subprocess.PIPE,
                    stdout=streams[0],
                    stderr=streams[1],
                    env=whole,
                    start_new_session=True,
                    pass_fds=descriptors,
                    cwd=folder,
                )
        except OSError as error:
            raise EngineError(f"{name} can't be started: {error}; command: {self._safe(shlex.join(command))}") from None
        if forked is None:
            register(self.pid)

    @property
    def pid(self) -> int:
        """The process group that the server and its children are in."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the server runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The log's last lines, after the errors further up: one process's failure causes others."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            causes = dict.fromkeys(line for line in lines[:-TAIL_LINES] if _CAUSE.search(line))
            return self._safe("\n".join([*list(causes)[:_CAUSES], *lines[-TAIL_LINES:]]))
        return ""

    def _safe(self, text: str) -> str:
        """The text without the secrets that the command line has: servers write their options into their logs."""
        from agentrl.config.secrets import is_secret, scrub  # which takes memory that a starter does without

        options = ((name, value) for name, value in pairwise(self.command) if name.startswith("--"))
        return scrub(text, (value for name, value in options if is_secret(name, value)))

    def exit_error(self) -> EngineError:
        """The error of a server that has ended."""
        end = f"{self.name} died with exit status {self.exit_status}; command: {self._safe(shlex.join(self.command))}"
        return EngineError(end if self.log is OURS else f"{end}\nthe last lines of {self.log}:\n{self.tail()}")

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """Wait until `probe` returns True.

        Raises:
            EngineError: it ended first, or took longer than `timeout` seconds; the log's tail is in the message.
        """
        if not await probe_until(probe, lambda: self.exit_status, time.monotonic() + timeout):
            if self.exit_status is not None:
                raise self.exit_error()
            raise EngineError(
                f"{self.name} was not ready within {timeout:g} s (engine.start_timeout); "
                f"the last lines of {self.log}:\n{self.tail()}"
            )
        self._segments |= await asyncio.to_thread(list_segments, self.pid)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the server's end, and return its exit status; None where it still runs after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exit_status

    def kill(self) -> None:
        """Kill the process group, and remove the shared memory that it leaves. Idempotent."""
        processes.signal_group(self.pid)
        self._process.wait()
        remove_segments(self._segments, self.pid)
        self._segments.clear()
        processes.forget(self.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def close(self) -> None:
        """Terminate, then kill, the process group, and delete a temporary log. Idempotent."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """`close` for callers without an event loop."""
        processes.signal_group(self.pid, signal.SIGTERM)
        self.wait(guard.GRACE)
        self.kill()
        if not self._keep:
            self.log.unlink(missing_ok=True)


def list_segments(group: int) -> set[Segment]:
    """The files of `/dev/shm` that processes of a group have mapped, where their mappings can be read (Linux)."""
    names = _names()
    return {segment for pid, own in _list_processes() if own == group for segment in _list_mapped_by(pid, names)}


def remove_segments(segments: Iterable[Segment], group: int) -> None:
    """Remove those of a killed group, whose last processes may still be ending, but for those that others use.

    SGLang unlinks its own only when it ends in order.
    """
    if not (left := {segment for segment in segments if os.path.exists(segment[0])}):
        return
    names = _names()
    used = {segment for pid, own in _list_processes() if own != group for segment in _list_mapped_by(pid, names)}
    for path, inode in left - used:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                os.unlink(path)


def _list_processes() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if name.isdigit():
                yield int(name), os.getpgid(int(name))


def _names() -> dict[int, str]:
    """The files there are by their numbers: a semaphore is mapped under a name of before, which is called deleted."""
    with contextlib.suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        return {entry.inode(): entry.path for entry in entries}
    return {}


def _list_mapped_by(pid: int, names: Mapping[int, str]) -> Iterator[Segment]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as lines:
        for line in lines:
            _, _, _, _, inode, *path = line.rstrip("\n").split(maxsplit=5)
            if path and path[0].startswith(SHARED_MEMORY) and int(inode) in names:
                yield names[int(inode)], int(inode)

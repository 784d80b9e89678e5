"""The process that workers are forked from, and what it and its owners say to each other: see `prefork`."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.cluster import guard
from agentrl.common import cores

READ_AT_LOAD = (
    *("PYTHON", "LD_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "MALLOC_", "TORCH", "PYTORCH", "ATEN_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "RUST_", "AGENTRL_", "XDG_"),
)
"""Beginnings of the names of variables that Python and libraries read when they are loaded."""
READ_LATER = (cores.VARIABLE, "PYTHONUNBUFFERED", "PYTHONBREAKPOINT", "TORCHINDUCTOR_CACHE_DIR")
"""Those among them that are read later, or given to a worker otherwise; Ray and transformers set the last two."""
ALONE_SECONDS = 10.0
"""Seconds that a shared process stays without an owner: a role that is replaced leaves a moment without one."""
_PR_SET_NAME = 15
_FILES = 5
_interrupted: Any = None
"""The answer to SIGINT in what is forked: the default, unless the owner was started where it is ignored."""
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!h")


@dataclass(frozen=True)
class ForkRequest:
    """A process that is to be forked.

    Attributes:
        name: what it is called.
        modules: to load first.
        environment: the whole of it.
        folder: its working directory.
        main: the import path of what it calls with its descriptor.
        guarded: whether it runs behind a guard, which leads its group and ends it with its owner; else it leads the
            group itself, and its owner has to.
        apart: the name of the process that forks it; "" is the one for all whose modules leave others as they are.
    """

    name: str
    modules: list[str]
    environment: dict[str, str]
    folder: str
    main: str = "agentrl.cluster.worker:main"
    guarded: bool = True
    apart: str = ""


def at_load(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that are read when Python and libraries are loaded."""
    names = (name for name in environment if name.startswith(READ_AT_LOAD) and name not in READ_LATER)
    return {name: environment[name] for name in names}


def main(where: str) -> int:
    """Fork what is asked for, until nobody is left who could; returns the exit status.

    Args:
        where: the descriptor of the owner's connection, or @ and a name to be reached by.
    """
    listener = None
    connections: list[socket.socket] = []
    if where.startswith("@"):
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"\0{where[1:]}")
        except OSError:
            return 0  # another one was faster
        listener.listen()
        if os.fork():
            return 0  # who starts it may end before others that it serves
    else:
        connections.append(socket.socket(fileno=int(where)))
    ends = Ends()
    global _interrupted
    _interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    _named("agentrl prefork")
    importlib.import_module("agentrl.cluster.worker")
    while listener or connections:
        known = [*connections, *([listener] if listener else [])]
        waited_for: list[Any] = [*known, ends.seen]
        patience = None if connections else ALONE_SECONDS
        ready = select.select(waited_for, [], [], patience)[0]
        if not ready:
            break
        if ends.seen in ready:
            ends.tell()
        if listener in ready and listener is not None:
            connections += _accepted(listener)
        for connection in [one for one in connections if one in ready]:
            if not _serve(connection, known, ends):
                connections.remove(connection)
                connection.close()
    return 0


class Ends:
    """The ends of processes that no guard watches: told to whoever has asked for them.

    Attributes:
        seen: a descriptor that can be read when some have ended.
    """

    def __init__(self) -> None:
        self.seen, self._seeing = os.pipe()
        os.set_blocking(self._seeing, False)
        signal.set_wakeup_fd(self._seeing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._told: dict[int, int] = {}

    def expect(self, pid: int, told: int) -> None:
        """A child whose end is to be written to a descriptor."""
        self._told[pid] = told

    def tell(self) -> None:
        """Take note of all that have ended."""
        os.read(self.seen, 4096)
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if (told := self._told.pop(done[0], None)) is not None:
                    with contextlib.suppress(OSError):  # nobody wants to know any more
                        os.write(told, STATUS.pack(os.waitstatus_to_exitcode(done[1])))
                    os.close(told)

    def leave(self) -> None:
        """Reset signals and close files, in a copy of this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file in (self.seen, self._seeing, *self._told.values()):
            os.close(file)


def _accepted(listener: socket.socket) -> list[socket.socket]:
    connection, _ = listener.accept()
    if user_of(connection) != os.getuid():
        connection.close()
        return []
    with contextlib.suppress(OSError):
        send(connection, at_load(os.environ))
    return [connection]


def _serve(connection: socket.socket, known: list[socket.socket], ends: Ends) -> bool:
    """Fork one process; False where the other end has gone."""
    try:
        head, files, _, _ = socket.recv_fds(connection, LENGTH.size, _FILES)
        if not head:
            return False
        start = ForkRequest(**json.loads(exactly(connection, LENGTH.unpack(head)[0])))
    except (OSError, ValueError):
        return False
    _load(start.modules)
    leads, leading = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        ends.leave()
        for one in known:
            one.close()
        os.close(leads)
        os.close(leading)
        os._exit(_guard(start, files) if start.guarded else _alone(start, files))
    *others, told, descriptor = files
    for file in (*others, descriptor, leading):
        os.close(file)
    if start.guarded:  # it tells its own end
        os.close(told)
    else:
        ends.expect(pid, told)
    os.read(leads, 1)  # until it leads its group, which may be killed from then on
    os.close(leads)
    with contextlib.suppress(OSError):
        connection.sendall(LENGTH.pack(pid))
    return True


def _load(modules: list[str]) -> None:
    """Load those of the modules that are new."""
    new = [module for module in modules if module not in sys.modules]
    for module in new:
        with contextlib.suppress(BaseException):  # the worker raises it again, and says so
            importlib.import_module(module)
    if new:
        gc.collect()
        gc.freeze()  # collections of copies would write to all of this memory


def _guard(start: ForkRequest, files: list[int]) -> int:
    """The guard's process, which forks the worker and watches it; returns its exit status."""
    *streams, told, descriptor = files
    _named("agentrl guard")
    _become(streams)
    follow = guard.follower()
    pid = os.fork()
    if not pid:
        os.close(told)
        os._exit(_run(start, descriptor, follow))
    os.close(descriptor)
    status = guard.watch(pid, lambda: _ended(pid))
    os.write(told, STATUS.pack(status))
    return status


def _alone(start: ForkRequest, files: list[int]) -> int:
    """A process without a guard; returns its exit status."""
    *streams, _told, descriptor = files  # one stays open as long as it runs, also where nobody is left to tell its end
    _become(streams)
    return _run(start, descriptor, lambda: None)


def _become(streams: list[int]) -> None:
    """Make those descriptors standard input, output and errors."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _run(start: ForkRequest, descriptor: int, follow: Callable[[], None]) -> int:
    """The process that was asked for, brought to where a new Python would be; returns its exit status."""
    try:
        follow()
        signal.signal(signal.SIGINT, _interrupted)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _named(start.name)
        os.environ.clear()
        os.environ.update(start.environment)
        os.chdir(start.folder)
        _as_new(int(start.environment[cores.VARIABLE]))
        module, _, function = start.main.partition(":")
        program = importlib.import_module(module)
        sys.argv = [str(program.__file__), str(descriptor)]
        status = getattr(program, function)(descriptor) or 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # as at Python's end: wait for threads, then exit handlers
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def _as_new(threads: int) -> None:
    """Make libraries as new: set what they keep of the process that they were loaded in."""
    sys.path[0:1] = [os.getcwd()]  # as with `python -m`
    modules: dict[str, Any] = sys.modules
    if "torch" in modules:
        modules["torch"].set_num_threads(threads)
    if "numpy" in modules:
        modules["numpy"].random.seed()


def _named(name: str) -> None:
    """Show that name in `ps` and `top`."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15].encode(), 0, 0, 0)


def user_of(connection: socket.socket) -> int:
    """The user at the other end of a connection on this machine."""
    _pid, user, _group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message, and open files with it."""
    data = json.dumps(dict(message)).encode()
    head = LENGTH.pack(len(data))
    if files:
        socket.send_fds(connection, [head], list(files))
    else:
        connection.sendall(head)
    connection.sendall(data)


def received(connection: socket.socket) -> dict[str, Any]:
    """The next message, which came without files.

    Raises:
        OSError: the other end has gone.
    """
    head = exactly(connection, LENGTH.size)
    if not head:
        raise OSError("the process that starts workers has ended")
    found: dict[str, Any] = json.loads(exactly(connection, LENGTH.unpack(head)[0]))
    return found


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; fewer where the other end has gone."""
    pieces: list[bytes] = []
    while count and (piece := connection.recv(count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces) if not count else b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

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
from agentrl.common.garbage import collect_nothing_while_loading

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
_guards = set[int]()
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
        apart: the name of the process that forks it; "" is the one for all whose modules leave others as they are.
    """

    name: str
    modules: list[str]
    environment: dict[str, str]
    folder: str
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
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_process_name("agentrl prefork")
    with collect_nothing_while_loading():
        importlib.import_module("agentrl.cluster.worker")
    while listener or connections:
        known = [*connections, *([listener] if listener else [])]
        patience = None if connections else ALONE_SECONDS
        ready = select.select(known, [], [], patience)[0]
        if not ready:
            break
        if listener in ready and listener is not None:
            connections += _accept(listener)
        for connection in [one for one in connections if one in ready]:
            if not _serve(connection, known):
                connections.remove(connection)
                connection.close()
    return 0


def _accept(listener: socket.socket) -> list[socket.socket]:
    connection, _ = listener.accept()
    if user_of(connection) != os.getuid():
        connection.close()
        return []
    with contextlib.suppress(OSError):
        send(connection, at_load(os.environ))
    return [connection]


def _serve(connection: socket.socket, known: list[socket.socket]) -> bool:
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
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in known:
            one.close()
        os.close(leads)
        os.close(leading)
        os._exit(_guard(start, files))
    _guards.add(pid)
    _reap()
    for file in (*files, leading):
        os.close(file)
    os.read(leads, 1)  # until it leads its group, which may be killed from then on
    os.close(leads)
    with contextlib.suppress(OSError):
        connection.sendall(LENGTH.pack(pid))
    return True


def _reap(*_: Any) -> None:
    """Take note of guards that have ended, and of no process that a module has started while it was loaded."""
    for pid in list(_guards):
        with contextlib.suppress(ChildProcessError):  # a signal came meanwhile
            if os.waitpid(pid, os.WNOHANG)[0]:
                _guards.discard(pid)


def _load(modules: list[str]) -> None:
    """Load those of the modules that are new."""
    new = [module for module in modules if module not in sys.modules]
    with collect_nothing_while_loading():
        for module in new:
            with contextlib.suppress(BaseException):  # the worker raises it again, and says so
                importlib.import_module(module)
    if new:
        gc.collect()
        gc.freeze()  # collections of copies would write to all of this memory


def _guard(start: ForkRequest, files: list[int]) -> int:
    """The guard's process, which forks the worker and watches it; returns its exit status."""
    *streams, told, descriptor = files
    _set_process_name("agentrl guard")
    _become(streams)
    follow = guard.follower()
    pid = os.fork()
    if not pid:
        os.close(told)
        os._exit(_run(start, descriptor, follow))
    os.close(descriptor)
    status = guard.watch(pid, lambda: _reap_exit(pid))
    os.write(told, STATUS.pack(status))
    return status


def _become(streams: list[int]) -> None:
    """Make those descriptors standard input, output and errors."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)


def _reap_exit(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _run(start: ForkRequest, descriptor: int, follow: Callable[[], None]) -> int:
    """The process that was asked for, brought to where a new Python would be; returns its exit status."""
    try:
        follow()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as behind a guard
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _set_process_name(start.name)
        os.environ.clear()
        os.environ.update(start.environment)
        os.chdir(start.folder)
        _as_new(int(start.environment[cores.VARIABLE]))
        from agentrl.cluster import worker

        sys.argv = [str(worker.__file__), str(descriptor)]
        status = worker.main(descriptor)
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
    sys.path[:] = dict.fromkeys(sys.path)  # PYTHONPATH may have the folder that `-m` put there, which Python sees to
    modules: dict[str, Any] = sys.modules
    if "torch" in modules:
        modules["torch"].set_num_threads(threads)
    if "numpy" in modules:
        modules["numpy"].random.seed()


def _set_process_name(name: str) -> None:
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


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """The next message, which came without files; OSError where the other end has gone."""
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

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

from agentrl import cores
from agentrl.cluster import guard

READ_AT_LOAD = (
    *("PYTHON", "LD_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "MALLOC_", "TORCH", "PYTORCH", "ATEN_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "RUST_", "AGENTRL_"),
)
"""Beginnings of the names of variables that Python and libraries read when they are loaded."""
READ_LATER = (cores.VARIABLE, "PYTHONUNBUFFERED", "PYTHONBREAKPOINT", "TORCHINDUCTOR_CACHE_DIR")
"""Those among them that are read later, or given to a worker otherwise; Ray and transformers set the last two."""
ALONE_SECONDS = 10.0
"""How long a shared process stays without an owner: a role that is replaced leaves a moment without one."""
_PR_SET_NAME = 15
_FILES = 4
LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Start:
    """A worker: what it is called, the modules to load first, its environment, and its working directory."""

    name: str
    modules: list[str]
    environment: dict[str, str]
    folder: str


def at_load(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment is read when Python and libraries are loaded."""
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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for guards: their owner hears of their end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _named("agentrl prefork")
    importlib.import_module("agentrl.cluster.worker")
    while listener or connections:
        known = [*connections, *([listener] if listener else [])]
        ready, _, _ = select.select(known, [], [], None if connections else ALONE_SECONDS)
        if not ready:
            break
        for connection in ready:
            if connection is listener:
                connections += _accepted(listener)
            elif not _serve(connection, known):
                connections.remove(connection)
                connection.close()
    return 0


def _accepted(listener: socket.socket) -> list[socket.socket]:
    connection, _ = listener.accept()
    if user_of(connection) != os.getuid():
        connection.close()
        return []
    with contextlib.suppress(OSError):
        send(connection, at_load(os.environ))
    return [connection]


def _serve(connection: socket.socket, known: list[socket.socket]) -> bool:
    """Fork one worker; False where the other end has gone."""
    try:
        head, files, _, _ = socket.recv_fds(connection, LENGTH.size, _FILES)
        if not head:
            return False
        start = Start(**json.loads(exactly(connection, LENGTH.unpack(head)[0])))
    except (OSError, ValueError):
        return False
    _load(start.modules)
    leads, leading = os.pipe()
    pid = os.fork()
    if not pid:
        for one in known:
            one.close()
        os.setsid()
        os.close(leads)
        os.close(leading)
        os._exit(_guard(start, files))
    for file in (*files, leading):
        os.close(file)
    os.read(leads, 1)  # until it leads its group, which may be killed from then on
    os.close(leads)
    with contextlib.suppress(OSError):
        connection.sendall(LENGTH.pack(pid))
    return True


def _load(modules: list[str]) -> None:
    """Load what is new of them."""
    new = [module for module in modules if module not in sys.modules]
    for module in new:
        with contextlib.suppress(BaseException):  # the worker raises it again, and says so
            importlib.import_module(module)
    if new:
        gc.collect()
        gc.freeze()  # collections of copies would write to all of this memory


def _guard(start: Start, files: list[int]) -> int:
    """The guard's process, which forks the worker and watches it; returns its exit status."""
    held, output, told, descriptor = files
    _named("agentrl guard")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for file, number in ((held, 0), (output, 1), (output, 2)):
        os.dup2(file, number)
    for file in (held, output):
        os.close(file)
    follow = guard.follower()
    pid = os.fork()
    if not pid:
        os.close(told)
        os._exit(_worker(start, descriptor, follow))
    os.close(descriptor)
    status = guard.watch(pid, lambda: _ended(pid))
    os.write(told, bytes([status]))
    return status


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _worker(start: Start, descriptor: int, follow: Callable[[], None]) -> int:
    """The worker's process, brought to where a new Python would be; returns its exit status."""
    try:
        follow()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _named(start.name)
        os.environ.clear()
        os.environ.update(start.environment)
        os.chdir(start.folder)
        _as_new(int(start.environment[cores.VARIABLE]))
        from agentrl.cluster import worker

        sys.argv = [worker.__file__, str(descriptor)]
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
    """What a library keeps of the process that it was loaded in, as if it had been loaded here."""
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

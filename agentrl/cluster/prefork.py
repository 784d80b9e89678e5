"""Roles' processes on this machine, forked from one that has loaded their modules already.

To load torch and a model library costs a process three seconds of a core, as often as a run has engines, environment
and reward workers, or replaces one. So the first start begins a process (`python -m agentrl.cluster.prefork`) that
loads the module of each role once and then forks: first the guard (`guard`), and from it the worker, which have its
memory as long as neither writes to it. It ends with its owner; what it has forked does not depend on it.

A trainer's rank is forked without a guard, since its trainer watches it itself and looks at its own process
(`agentrl.train.backends.ranks.group`). Modules that change others for good (Megatron's on a CPU) are loaded by a
process apart, which forks nothing else.

It has one thread, computes nothing and touches no device, so that its copies may do all of that; modules of other
people's roles, which might start threads, are left to the worker. What libraries read from the environment when they
are loaded can't be changed later: where that differs (`suits`), the worker is a new Python, as it is on other systems
than Linux. (numpy's BLAS keeps to one thread; torch has as many as the worker is to have.)
"""

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
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agentrl import cores
from agentrl.cluster import guard
from agentrl.errors import EngineError

ROOT = str(Path(__file__).parents[2])
READ_AT_LOAD = (
    *("PYTHON", "LD_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "MALLOC_", "TORCH", "PYTORCH", "ATEN_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "RUST_", "AGENTRL_", "XDG_"),
)
"""Beginnings of the names of variables that Python and libraries read when they are loaded."""
_PR_SET_NAME = 15
_FILES = 5
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!h")


@dataclass(frozen=True)
class Start:
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


class Forked:
    """A guard or a rank that was forked, with as much of `subprocess.Popen` as their owners need.

    Attributes:
        stdin: what it holds on to: when this is closed, a guard ends its group.
        returncode: how it ended, a negative number by a signal; None while that is not known.
    """

    def __init__(self, stdin: int, status: int) -> None:
        self.stdin: IO[bytes] | None = os.fdopen(stdin, "wb", buffering=0)
        self.returncode: int | None = None
        self.started: Future[int] = Future()
        self._status: int | None = status
        self._reading = threading.Lock()

    @property
    def pid(self) -> int:
        """Its process group; waits until it has been forked.

        Raises:
            EngineError: the process that should have forked it has ended.
        """
        return self.started.result()

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        with self._reading:
            if self._status is not None and select.select([self._status], [], [], 0)[0]:
                said = os.read(self._status, _STATUS.size)  # nothing where it was killed
                self.returncode = _STATUS.unpack(said)[0] if said else -signal.SIGKILL
                os.close(self._status)
                self._status = None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it takes longer than `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
            descriptor = self._status
            if descriptor is not None:
                with contextlib.suppress(OSError, ValueError):  # another thread has read it meanwhile
                    select.select([descriptor], [], [], left)
        return status


class Prefork:
    """The owner's side of the process that forks.

    Args:
        environment: that process's.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment, self.owner = dict(environment), os.getpid()
        self._socket, theirs = socket.socketpair()
        self._waiting: deque[Forked] = deque()
        self._sending = threading.Lock()
        with theirs:
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
            )
        self.alive = True
        threading.Thread(target=self._answers, name="starts of workers", daemon=True).start()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a worker with that environment may be forked here."""
        return _at_load(environment) == _at_load(self.environment)

    def start(self, start: Start, output: int, errors: int, descriptor: int) -> Forked:
        """Have a process forked (see the function); returns before it is.

        Raises:
            OSError: the process that forks has ended, or a descriptor is not open.
        """
        held, stdin = os.pipe()
        status, told = os.pipe()
        forked = Forked(stdin, status)
        message = json.dumps(start.__dict__).encode()
        try:
            with self._sending:
                socket.send_fds(self._socket, [_LENGTH.pack(len(message))], [held, output, errors, told, descriptor])
                self._waiting.append(forked)
                self._socket.sendall(message)
        finally:
            os.close(held)
            os.close(told)
        return forked

    def _answers(self) -> None:
        """Hand on the numbers of what was forked, in the order of the starts."""
        with contextlib.suppress(OSError):
            while answer := _exactly(self._socket, _LENGTH.size):
                self._waiting.popleft().started.set_result(_LENGTH.unpack(answer)[0])
        with self._sending:
            self.alive = False
            self._socket.close()
            for forked in self._waiting:
                forked.started.set_exception(EngineError("the process that starts workers has ended"))


_preforks: dict[str, Prefork] = {}
_creating = threading.Lock()


def start(
    start: Start, output: int, errors: int, descriptor: int, started: Callable[[int], object] = lambda _: None
) -> Forked | None:
    """Fork a worker, or a rank; None where it has to be a new Python.

    Args:
        start: what it is; its environment is whole.
        output: the descriptor that it writes to.
        errors: the same for errors.
        descriptor: its end of a pair of sockets.
        started: called with its process group, from another thread, once it has been forked.
    """
    if sys.platform != "linux" or cores.VARIABLE not in start.environment:
        return None
    with _creating:
        prefork = _preforks.get(start.apart)
        if prefork is None or prefork.owner != os.getpid() or not prefork.alive:
            prefork = Prefork({**start.environment, cores.VARIABLE: "1"})  # a BLAS would start threads when loaded
            _preforks[start.apart] = prefork
        if not prefork.suits(start.environment):
            return None
        try:
            forked = prefork.start(start, output, errors, descriptor)
        except OSError:
            return None
    forked.started.add_done_callback(lambda done: None if done.exception() else started(done.result()))
    return forked


def _at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_LOAD) and name not in (cores.VARIABLE, "PYTHONUNBUFFERED")
    }


# ------------------------------------------------------------------------------------------- the process that forks


def main(descriptor: int) -> int:
    """Fork what is asked for, until the owner has gone; returns the exit status."""
    control = socket.socket(fileno=descriptor)
    ended, ending = os.pipe()
    os.set_blocking(ending, False)
    signal.set_wakeup_fd(ending, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _named("agentrl prefork")
    importlib.import_module("agentrl.cluster.worker")
    ends: dict[int, int] = {}
    while head := _next(control, ended, ends):
        (length,), files = _LENGTH.unpack(head[0]), head[1]
        start = Start(**json.loads(_exactly(control, length)))
        _load(start.modules)
        leads, leading = os.pipe()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            control.close()
            for file in (leads, leading, ended, ending, *ends.values()):
                os.close(file)
            os._exit(_guard(start, files) if start.guarded else _rank(start, files))
        held, output, errors, told, theirs = files
        for file in (held, output, errors, theirs, leading):
            os.close(file)
        if start.guarded:  # it tells its own end
            os.close(told)
        else:
            ends[pid] = told
        os.read(leads, 1)  # until it leads its group, which may be killed from then on
        os.close(leads)
        control.sendall(_LENGTH.pack(pid))
    return 0


def _next(control: socket.socket, ended: int, ends: dict[int, int]) -> tuple[bytes, list[int]] | None:
    """The next message's head (see `_head`); what `ended` announces meanwhile is told, as `ends` says where."""
    while control.fileno() not in select.select([control.fileno(), ended], [], [])[0]:
        os.read(ended, 4096)
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if (told := ends.pop(done[0], None)) is not None:
                    with contextlib.suppress(OSError):  # nobody wants to know any more
                        os.write(told, _STATUS.pack(os.waitstatus_to_exitcode(done[1])))
                    os.close(told)
    return _head(control)


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
    *streams, told, descriptor = files
    _named("agentrl guard")
    _become(streams)
    follow = guard.follower()
    pid = os.fork()
    if not pid:
        os.close(told)
        os._exit(_worker(start, descriptor, follow))
    os.close(descriptor)
    status = guard.watch(pid, lambda: _ended(pid))
    os.write(told, _STATUS.pack(status))
    return status


def _rank(start: Start, files: list[int]) -> int:
    """The process of a rank; returns its exit status."""
    *streams, _, descriptor = files  # one stays open as long as it runs, also where nobody is left to tell its end
    _become(streams)
    return _worker(start, descriptor, lambda: None)


def _become(streams: list[int]) -> None:
    """Make those descriptors standard input, output and errors."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)


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


def _head(control: socket.socket) -> tuple[bytes, list[int]] | None:
    """A message's length and the descriptors that came with it; None where the owner has gone."""
    head, files, _, _ = socket.recv_fds(control, _LENGTH.size, _FILES)
    return (head, files) if head else None


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; fewer where the other end has gone."""
    pieces: list[bytes] = []
    while count and (piece := connection.recv(count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces) if not count else b""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""Roles' processes on this machine, forked from one that has loaded their modules already.

To load torch and a model library costs a process three seconds of a core, as often as a run has engines, environment
and reward workers, or replaces one. So the first start begins a process (`python -m agentrl.cluster.forking`) that
loads the module of each role once and then forks: first the guard (`guard`), and from it the worker, which have its
memory as long as neither writes to it. It ends with its owner; what it has forked does not depend on it.

On a node of Ray's, where each role has a starter of its own, starters share one by a name, which says what they have to
have in common (`shared_name`). It ends a moment after the last of them.

Modules that change others for good (Megatron's on a CPU) are loaded by a process apart, which forks nothing else.

It has one thread, computes nothing and touches no device, so that its copies may do all of that; modules of other
people's roles, which might start threads, are left to the worker. What libraries read from the environment when they
are loaded can't be changed later: where that differs (`suits`), the worker is a new Python, as it is on other systems
than Linux, and where the process can't be reached. (numpy's BLAS keeps to one thread; torch has as many as the worker
is to have.)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from agentrl.cluster import forking
from agentrl.cluster.forking import LENGTH, STATUS, ForkRequest, at_load, exactly, receive_message, send, user_of
from agentrl.cluster.ray.versions import versions
from agentrl.common import cores
from agentrl.errors import EngineError

ROOT = str(Path(__file__).parents[2])
START_SECONDS = 60.0
"""Seconds that the start of a shared process may take."""


class Forked:
    """A guard that was forked, with as much of `subprocess.Popen` as their owners need.

    Attributes:
        stdin: what it holds on to: when this is closed, it ends its group.
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
        """The process group; waits until the process has been forked.

        Raises:
            EngineError: the process that should have forked it has ended.
        """
        return self.started.result()

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        with self._reading:
            if self._status is not None and select.select([self._status], [], [], 0)[0]:
                said = os.read(self._status, STATUS.size)  # nothing where it was killed
                self.returncode = STATUS.unpack(said)[0] if said else -signal.SIGKILL
                os.close(self._status)
                self._status = None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end.

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
        environment: that process's, where it has to be started.
        name: what those that share it on this machine call it; None: nobody does.

    Raises:
        OSError: it can't be reached.
    """

    def __init__(self, environment: Mapping[str, str], name: str | None = None) -> None:
        self.owner = os.getpid()
        if name is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                _begin(str(theirs.fileno()), environment, theirs.fileno())
        else:
            self._socket = _join_process(name) or _begin_process(name, environment)
        self._at_load = at_load(environment) if name is None else receive_message(self._socket)
        self._waiting: deque[Forked] = deque()
        self._sending = threading.Lock()
        self.alive = True
        threading.Thread(target=self._answers, name="starts of workers", daemon=True).start()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a worker with that environment may be forked here."""
        return at_load(environment) == self._at_load

    def close(self) -> None:
        """End the shared process; what it has forked goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def start(self, start: ForkRequest, output: int, errors: int, descriptor: int) -> Forked:
        """Have a process forked (see the function); returns before it is.

        Raises:
            OSError: the process that forks has ended, or a descriptor is not open.
        """
        held, stdin = os.pipe()
        status, told = os.pipe()
        forked = Forked(stdin, status)
        try:
            with self._sending:
                self._waiting.append(forked)
                send(self._socket, start.__dict__, [held, output, errors, told, descriptor])
        finally:
            os.close(held)
            os.close(told)
        return forked

    def _answers(self) -> None:
        """Hand on the numbers of what was forked, in the order of the starts."""
        with contextlib.suppress(OSError):
            while answer := exactly(self._socket, LENGTH.size):
                self._waiting.popleft().started.set_result(LENGTH.unpack(answer)[0])
        with self._sending:
            self.alive = False
            self._socket.close()
            for forked in self._waiting:
                forked.started.set_exception(EngineError("the process that starts workers has ended"))


def shared_name() -> str:
    """The name under which processes like this one share what forks their workers.

    Like this one: of the same user and code, under the same limits, with the same variables as far as those count, and
    in the same namespaces: containers that share the machine's network reach each other by such a name.
    """
    if sys.platform != "linux":
        return ""
    limits = Path("/proc/self/cgroup").read_text(), sorted(os.sched_getaffinity(0)), os.nice(0)
    spaces = sorted(os.readlink(space) for space in Path("/proc/self/ns").iterdir())
    same = versions(), sys.executable, sorted(at_load(os.environ).items()), os.getuid(), limits, spaces
    return f"agentrl-prefork-{hashlib.sha256(repr(same).encode()).hexdigest()[:32]}"


def _begin(where: str, environment: Mapping[str, str], *descriptors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", forking.__name__, where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**environment, cores.VARIABLE: "1"},  # a BLAS would start threads when it is loaded
        start_new_session=True,
        pass_fds=descriptors,
        cwd=ROOT,
    )


def _join_process(name: str) -> socket.socket | None:
    """A connection to the process of that name, where this user has started one."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
    except OSError:
        connection.close()
        return None
    if user_of(connection) != os.getuid():
        connection.close()
        return None
    return connection


def _begin_process(name: str, environment: Mapping[str, str]) -> socket.socket:
    """A connection to that process, which is started, unless another one was faster: that may not listen yet."""
    end = time.monotonic() + START_SECONDS
    while not _begin(f"@{name}", environment).wait(START_SECONDS) and time.monotonic() < end:
        if (connection := _join_process(name)) is not None:
            return connection
    raise OSError(f"the process that starts workers ({name}) can't be started")


_own: dict[tuple[str | None, str], Prefork] = {}
_did_not_suit: dict[str, str] = {}
_creating = threading.Lock()


def start(
    start: ForkRequest,
    output: int,
    errors: int,
    descriptor: int,
    started: Callable[[int], object] = lambda _: None,
    name: str | None = None,
) -> Forked | None:
    """Fork a worker; None where it has to be a new Python.

    Args:
        start: what it is; its environment is whole.
        output: the descriptor that it writes to.
        errors: the same for errors.
        descriptor: its end of a pair of sockets.
        started: called with its process group, from another thread, once it has been forked.
        name: of a process that is shared on this machine; None is one of this process's own.
    """
    if sys.platform != "linux" or cores.VARIABLE not in start.environment:
        return None
    try:
        with _creating:
            prefork = _suiting(start, name)
            forked = prefork.start(start, output, errors, descriptor) if prefork is not None else None
    except (OSError, subprocess.TimeoutExpired):
        return None
    if forked is not None:
        forked.started.add_done_callback(lambda done: None if done.exception() else started(done.result()))
    return forked


def _suiting(start: ForkRequest, name: str | None) -> Prefork | None:
    """The process that may fork it; it is begun where there is none."""
    global _did_not_suit
    key, environment = (name, start.apart), start.environment
    prefork = _own.get(key)
    if prefork is not None and (prefork.owner != os.getpid() or not prefork.alive):
        prefork = None
    if prefork is not None and not prefork.suits(environment) and name is None:
        before, _did_not_suit = _did_not_suit, at_load(environment)
        if _did_not_suit == before:  # the second in a row: this process's environment has changed
            prefork.close()
            prefork = None
    if prefork is None:
        prefork = _own[key] = Prefork(environment, name and f"{name}{start.apart}")
    return prefork if prefork.suits(environment) else None

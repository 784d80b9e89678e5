"""Side effects of each call of an environment's method: how long it blocks the event loop, what it changes.

A call blocks the loop from its start, or from when the loop resumes it, until it returns or awaits. The time in which
its thread ran or slept counts, not the time in which it was runnable without a core: a busy machine makes no call look
slow. Where the kernel does not distinguish these, CPU time alone counts.

The label of the running call is in memory shared with the supervising process, which reads it in an endless loop, after
a crash and after `os._exit`.
"""

from __future__ import annotations

import asyncio
import decimal
import gc
import locale
import logging
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrl.common.foreign_errors import words
from agentrl.envs.base import Env, reward_methods
from agentrl.envs.check import places
from agentrl.envs.check.canary import Canary
from agentrl.envs.check.loggers import LogHandlers
from agentrl.envs.check.traces import Traces

LABEL_BYTES = 4000
_HEAD = struct.Struct("dI")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM)
"""Signals whose handlers an environment must leave alone."""


class SharedLabel:
    """The running call's label and its start time, in memory that a forked process shares."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + LABEL_BYTES)

    def write(self, label: str, since: float) -> None:
        """Set the label of the running call and its start, a time of `time.monotonic()`; 0 where none runs."""
        data = label.encode(errors="replace")[:LABEL_BYTES]
        self._memory[: _HEAD.size + len(data)] = _HEAD.pack(since, len(data)) + data

    def read(self) -> tuple[str, float]:
        since, size = _HEAD.unpack(self._memory[: _HEAD.size])
        return self._memory[_HEAD.size : _HEAD.size + size].decode(errors="replace"), since


@dataclass
class MethodCall:
    """One call of a method.

    Attributes:
        where: class and method, and the tools that it runs.
        began: in seconds of `time.monotonic()`.
        task: the asyncio task that made it.
        seconds: how long it took.
        held: seconds of the longest time in which it blocked the event loop.
        random: fingerprints of the global random generators, before and after, by module.
        changed: the parts of the process that it changed, in words.
    """

    where: str
    began: float
    task: asyncio.Task[Any] | None
    seconds: float = 0.0
    held: float = 0.0
    random: dict[str, tuple[int, int]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)


@dataclass
class ToolException:
    """A tool's code raised."""

    tool: str
    error: str
    place: str


@dataclass(frozen=True)
class Handled:
    """An exception in a reward's code, which that code handled."""

    kind: type[BaseException]
    error: str
    place: str


class Monitor(logging.Handler):
    """Records calls (set as `attribution.watch`), and what tools raise from the tool registry's log.

    Attributes:
        context: which episode runs, for labels.
        tools: the tools that the next step will run.
        calls: the calls that have ended since `take`.
        failures: what tools raised since `take`.
        open: the running calls.
        fatal_call: the call that raised what ends an event loop.
        traces: files that calls write, warnings, lost exceptions.
        canary: the secret that no agent may be told.
        handled: where exceptions that a reward handled are noted; None notes none.
        attributing: whether changes of the process and time on the event loop are a call's own; see `unattributed`.
        drawn: whether the states of global random generators are recorded, half of what it takes to record a call.
    """

    def __init__(self, shared: SharedLabel) -> None:
        super().__init__(logging.DEBUG)
        self.shared = shared
        self.context, self.tools = "", tuple[str, ...]()
        self.calls: list[MethodCall] = []
        self.failures: list[ToolException] = []
        self.attributing = True
        self.drawn = False
        self.open: list[MethodCall] = []
        self.fatal_call = ""
        self._stretch: tuple[float, float] | None = None
        self._not_counted_seconds = 0.0
        self._clock = LoopClock()
        self.traces = Traces(lambda: bool(self.open))
        self._log_handlers = LogHandlers()
        self.canary: Canary | None = None
        self.handled: list[Handled] | None = None

    def take(self) -> tuple[list[MethodCall], list[ToolException]]:
        """The calls and failures since the previous `take`."""
        taken = self.calls, self.failures
        self.calls, self.failures = [], []
        return taken

    @contextmanager
    def unattributed(self) -> Iterator[None]:
        """Changes and held time of the loop are no call's own: several run at a time, or memory is traced.

        The comparison of the process before and after a call allocates thousands of numbers, which are slow to trace.
        """
        self.attributing = False
        try:
            yield
        finally:
            self.attributing = True

    def emit(self, record: logging.LogRecord) -> None:
        """Record what a tool raised."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and isinstance(record.args, tuple):
            self.failures.append(ToolException(str(record.args[0]), words(error), places.of_error(error)))

    # ------------------------------------------------------------------ calls

    @contextmanager
    def __call__(self, env: Env, method: str) -> Iterator[None]:
        """Record one call; a nested one (of a wrapped environment) counts as part of it."""
        traced = self.handled is not None and method in {mark.name for mark, _ in reward_methods(env)}
        with self.watching(f"{type(env.unwrapped).__name__}.{method}"):
            if traced:
                sys.settrace(self._trace)
            try:
                yield
            finally:
                if traced:
                    sys.settrace(None)

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        """Note exceptions in the environment's own code."""
        frame.f_trace_lines = False
        if not places.is_own(frame.f_code.co_filename):
            return None
        if event == "exception" and self.handled is not None and not issubclass(arg[0], (StopIteration, GeneratorExit)):
            place = places.own([(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)])
            self.handled.append(Handled(arg[0], words(arg[1]), place))
        return self._trace

    @contextmanager
    def watching(self, where: str) -> Iterator[None]:
        """Record the body as one call."""
        task = _current_task()
        if any(call.task is task for call in self.open):
            yield
            return
        if where.endswith(".step") and self.tools:
            where += f" (tool {', '.join(map(repr, self.tools))})"
        call = MethodCall(where, time.monotonic(), task)
        before = _Process.now(self._log_handlers, drawn=self.drawn) if self.attributing else None
        self.open.append(call)
        self.shared.write(f"{where}{self.context}", call.began)
        self._stretch = self._clock.now()
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.fatal_call = f"{where}{self.context}"
            raise
        finally:
            self._end_stretch()
            self.open.remove(call)
            call.seconds = time.monotonic() - call.began
            self.shared.write(f"{where}{self.context}", min((one.began for one in self.open), default=0.0))
            if before is not None:
                call.random, call.changed = before.compare(_Process.now(self._log_handlers, drawn=bool(before.random)))
            self.calls.append(call)

    def overdue(self, limit: float) -> MethodCall | None:
        """A call that has been under way for longer than `limit` seconds."""
        return next((call for call in self.open if time.monotonic() - call.began > limit), None)

    # ------------------------------------------------------------------ the event loop

    def install(self) -> None:
        """Measure every callback of the running event loop, and note which loggers get handlers."""
        self._log_handlers.install()
        original, thread = asyncio.Handle._run, threading.get_ident()

        def run(handle: Any) -> None:
            if threading.get_ident() != thread or not self.open:
                return original(handle)
            self._stretch = self._clock.now()
            try:
                return original(handle)
            finally:
                self._end_stretch()

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        subprocess.Popen.__init__ = self._not_counted(subprocess.Popen.__init__, thread)  # type: ignore[method-assign]
        threading.Thread.start = self._not_counted(threading.Thread.start, thread)  # type: ignore[method-assign]

    def _not_counted(self, start: Callable[..., None], thread: int) -> Callable[..., None]:
        """Leave out the time of starting a program or a thread, which depends on how busy the machine is."""

        def starting(*args: Any, **kwargs: Any) -> None:
            if threading.get_ident() != thread:
                return start(*args, **kwargs)
            moment, ran = self._clock.now(), time.thread_time()
            try:
                return start(*args, **kwargs)
            finally:
                self._not_counted_seconds += self._clock.since(moment) - (time.thread_time() - ran)

        return starting

    def _end_stretch(self) -> None:
        if self._stretch is not None and self.open and self.attributing:
            call = self.open[-1]
            call.held = max(call.held, self._clock.since(self._stretch) - self._not_counted_seconds)
        self._stretch, self._not_counted_seconds = None, 0.0


class LoopClock:
    """The time that this thread has run or slept, without the time that it waited for a core."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            _measure_wait(self._file)
        except (OSError, ValueError, IndexError):
            self._file = None

    @property
    def sees_sleep(self) -> bool:
        """True if time slept counts; elsewhere it is CPU time alone."""
        return self._file is not None

    def now(self) -> tuple[float, float]:
        """A time stamp for `since`."""
        if self._file is None:
            return time.thread_time(), 0.0
        return time.perf_counter(), _measure_wait(self._file)

    def since(self, moment: tuple[float, float]) -> float:
        """Seconds since a time stamp."""
        clock, waited = self.now()
        return (clock - moment[0]) - (waited - moment[1])


def _measure_wait(file: int) -> float:
    return int(os.pread(file, 100, 0).split()[1]) / 1e9


@dataclass
class _Process:
    """State of the process that all environments share, and none may change."""

    folder: str
    variables: dict[str | bytes, str | bytes]
    random: dict[str, int]
    settings: dict[str, object]
    handlers: dict[str, tuple[logging.Handler, ...]]

    @classmethod
    def now(cls, log_handlers: LogHandlers, *, drawn: bool) -> _Process:
        try:
            folder = os.getcwd()
        except OSError:
            folder = "(gone)"
        settings: dict[str, object] = {
            "sys.path": tuple(sys.path),
            "the level of the root logger": logging.root.level,
            "the recursion limit": sys.getrecursionlimit(),
            "the default timeout of sockets": socket.getdefaulttimeout(),
            "the locale": locale.setlocale(locale.LC_ALL),
            "the time zone": time.tzname,
            "the precision of decimal": decimal.getcontext().prec,
            "the filters of warnings": (len(warnings.filters), *warnings.filters[:1]),
            "sys.stdout": sys.stdout,
            "sys.stderr": sys.stderr,
            "the garbage collector": gc.isenabled(),
            "the interval at which threads switch": sys.getswitchinterval(),
            "the mask of new files (os.umask)": _umask(),
            **_torch_settings(),
            **{f"the handler of {one.name}": signal.getsignal(one) for one in HANDLED},
        }
        return cls(folder, _variables(), fingerprints() if drawn else {}, settings, log_handlers.now())

    def compare(self, after: _Process) -> tuple[dict[str, tuple[int, int]], list[str]]:
        changed = []
        if after.folder != self.folder:
            changed.append("the working directory (os.chdir)")
        differing = self.variables != after.variables and self.variables.items() ^ after.variables.items()
        names = {os.fsdecode(key) for key, _ in differing or ()}
        changed += [f"the environment variable {name}" for name in sorted(names)]
        changed += _different(self.settings, after.settings)
        changed += [f"the handlers of the logger {name!r}" for name in _different(self.handlers, after.handlers)]
        return {name: (self.random.get(name, 0), state) for name, state in after.random.items()}, changed


def _umask() -> int:
    os.umask(mask := os.umask(0o077))
    return mask


def _torch_settings() -> dict[str, object]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {}
    return {"torch's default dtype": torch.get_default_dtype(), "torch's threads": torch.get_num_threads()}


def _different(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)] if before != after else []


def _variables() -> dict[str | bytes, str | bytes]:
    """The environment variables as Python keeps them: to decode them all, twice a call, was a fifth of a check's work.

    A Python that keeps them elsewhere has them decoded.
    """
    kept: dict[str | bytes, str | bytes] = getattr(os.environ, "_data", {}) or {**os.environ}
    return dict(kept)


def fingerprints() -> dict[str, int]:
    """The state of every global random generator that is loaded, by its module's name, hashed."""
    found = {"random": hash(random.getstate())}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        state = numpy.random.get_state()
        found["numpy.random"] = hash((state[1].tobytes(), *state[2:]))
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["torch"] = hash(torch.get_rng_state().numpy().tobytes())
    return found


def seed_generators(number: int) -> None:
    """Seed every global random generator that is loaded."""
    random.seed(number)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(number)
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(number)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None

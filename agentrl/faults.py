"""Faults by plan: a run is killed, stopped, delayed or lied to where a file says, and a log says where it was.

`faults=plan.yaml` names a plan. The code has a few named points (`POINTS`), each of one line; without a plan they do
nothing. A fault fires at a point the nth time that the process reaches it, with a chance at each time, or as a Poisson
process; without a point it fires whenever its time has come. Everything random follows from the plan's seed.

    seed: 0
    faults:
      - {action: kill, point: checkpoint.rename, nth: 2}
      - {action: drop, point: engine.reply, chance: 0.01, times: 20}
      - {action: kill, target: engine, every: 60, times: 1000}

Each fault that fires is first written to the run folder's `faults.jsonl`, which is read again when the run is
resumed: a fault that has fired `times` times in a run is over.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from agentrl.common import processes
from agentrl.config import Section
from agentrl.errors import ConfigError, InfraError, suggest
from agentrl.overrides import read_yaml, validate

T = TypeVar("T")
LOG = "faults.jsonl"
Action = Literal["kill", "stop", "delay", "drop", "garble", "full_disk", "lock_store", "jump_clock", "late_tool"]
ANYWHERE = ("kill", "stop", "lock_store", "jump_clock")
"""Actions that need no point."""


@dataclass(frozen=True)
class Point:
    """A named place in the code.

    Attributes:
        about: what happens there.
        replies: something is answered there, which can be dropped.
        data: bytes, or a file or folder, are passed there, which can be garbled.
        writes: the disk is written to there.
        tools: a tool is run there.
    """

    about: str
    replies: bool = False
    data: bool = False
    writes: bool = False
    tools: bool = False


POINTS = {
    "engine.reply": Point("an engine has generated a turn (or a part, up to a publication)", replies=True),
    "engine.response": Point("a line of an inference server's answer has arrived", data=True),
    "tool.call": Point("a tool that is waited for is about to run", tools=True),
    "env.reset": Point("an environment has begun an episode", replies=True),
    "env.step": Point("an environment has answered a message", replies=True),
    "env.reward": Point("an environment has computed a session's rewards", replies=True),
    "session.ended": Point("a session has ended and is stored"),
    "store.commit": Point("the session store is about to commit", writes=True),
    "groups.taken": Point("a step has its groups"),
    "trainer.step": Point("the trainer is about to learn from a step's forests"),
    "trainer.call": Point("all ranks of a trainer of several processes have been called"),
    "weights.publish": Point("new weights are about to be published"),
    "step.published": Point("a step's weights are published, and its metrics are not recorded"),
    "metrics.write": Point("a step's metrics are about to be written", writes=True),
    "checkpoint.write": Point("a checkpoint is about to be written", writes=True),
    "checkpoint.rename": Point("a checkpoint is written, and not renamed yet", data=True, writes=True),
    "checkpoint.renamed": Point("a checkpoint is renamed", data=True),
    "file.replace": Point("a small file is written beside its name, and not renamed yet", data=True, writes=True),
}
"""The points at which faults can be injected."""


class Fault(Section):
    """A fault to inject: its kind, its point and its time."""

    action: Action
    """kill (SIGKILL) or stop (SIGSTOP for `seconds`) a process, delay a point, drop a reply, garble data, fail a write
    as a full disk does, keep the session store locked, move the wall clock by `seconds`, or let a tool's deadline
    pass as soon as it has begun."""
    point: str | None = None
    """The point; None: any, at times that follow from `every`."""
    target: Literal["driver", "engine", "trainer", "sessions", "sandbox"] = "driver"
    """The processes that are killed or stopped: the run's own process, or by chance one of its engines, of its
    trainer's processes, or of its sandboxes (killed only)."""
    pid_file: str | None = None
    """The process that is killed or stopped instead: its number is in this file (a reward service, a server)."""
    nth: PositiveInt | None = None
    """Fires when the process reaches the point for the nth time, and each time after that."""
    chance: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fires with this probability each time that the point is reached."""
    every: PositiveFloat | None = None
    """Fires once in so many seconds on average, as a Poisson process."""
    times: PositiveInt = 1
    """The number of times that it fires in the whole run."""
    seconds: float = 1.0
    """Seconds that a delay, a stop or a lock lasts, or by which the clock jumps, which may be negative."""

    @model_validator(mode="after")
    def _fits(self) -> Fault:
        if self.point is not None and self.point not in POINTS:
            hint = suggest(self.point, POINTS)
            raise ValueError(f"point={self.point!r}: there is no such point{hint} (points: {', '.join(POINTS)})")
        when = [name for name in ("nth", "chance", "every") if getattr(self, name) is not None]
        if len(when) != 1:
            raise ValueError(f"a fault needs one of nth, chance and every, not {' and '.join(when) or 'none'}")
        if self.point is None and (when != ["every"] or self.action not in ANYWHERE):
            raise ValueError(f"action={self.action} with {when[0]}={getattr(self, when[0])} needs a point")
        if self.target != "driver" and self.action not in ("kill", "stop"):
            raise ValueError(f"target={self.target} is for action=kill and stop, not {self.action}")
        if self.target == "sandbox" and self.action == "stop":
            raise ValueError("target=sandbox is for action=kill, not stop")
        if self.pid_file is not None and (self.action not in ("kill", "stop") or self.target != "driver"):
            raise ValueError(f"pid_file is for action=kill and stop without a target, not {self.action}, {self.target}")
        if self.seconds <= 0 and self.action != "jump_clock":
            raise ValueError(f"seconds={self.seconds:g} must be over 0 for action={self.action}")
        need = {"drop": "replies", "garble": "data", "full_disk": "writes", "late_tool": "tools"}.get(self.action)
        if need and self.point is not None and not getattr(POINTS[self.point], need):
            fitting = ", ".join(name for name, point in POINTS.items() if getattr(point, need))
            raise ValueError(f"action={self.action} can't happen at point={self.point}; it can at: {fitting}")
        return self


class FaultPlan(Section):
    """Faults of a run."""

    faults: tuple[Fault, ...]
    """Each is independent of the others."""
    seed: int = 0
    """Decides chances, times, and which process."""


def load(path: str | Path) -> FaultPlan:
    """A plan from its YAML file.

    Raises:
        ConfigError: there is no such file, or something in it is wrong.
    """
    tree = read_yaml(path)
    try:
        return validate(tree, FaultPlan)
    except ConfigError as error:
        raise ConfigError(f"faults={str(path)!r}: {error}") from None


_active: _Injector | None = None


def point(name: str, value: Any = None) -> Any:
    """A named point: returns `value`, unless a plan says otherwise.

    Args:
        name: one of `POINTS`.
        value: what may be garbled: bytes, or the path of a file or a folder.

    Raises:
        InfraError: a reply was dropped.
        OSError: the disk is full.
    """
    if _active is None:
        return value
    for seconds in (found := _active.reached(name)).delays:
        time.sleep(seconds)
    return found.act(value)


async def async_point(name: str, value: Any = None) -> Any:
    """A named point on the event loop, which a delay does not block; see `point`."""
    if _active is None:
        return value
    for seconds in (found := _active.reached(name)).delays:
        await asyncio.sleep(seconds)
    return found.act(value)


@contextmanager
def inject_faults(path: str | Path | None, folder: Path) -> Iterator[None]:
    """Meanwhile faults are injected, where `path` names a plan; one run of a process at a time.

    Args:
        path: the plan's file; None is none.
        folder: the run's, which gets `faults.jsonl`.
    """
    global _active
    if path is None:
        yield
        return
    _active = _Injector(load(path), folder)
    try:
        yield
    finally:
        _active.close()
        _active = None


def list_fired(folder: Path) -> list[dict[str, Any]]:
    """The faults that have fired in a run, in order: `fault` is the index in the plan."""
    file = folder / LOG
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [orjson.loads(line) for line in lines if line.endswith(b"\n")]


class _Reached:
    """The faults that fire at a point that is reached."""

    def __init__(self, injector: _Injector, name: str, firing: list[int]) -> None:
        self._injector, self._name, self._firing = injector, name, firing

    @property
    def delays(self) -> list[float]:
        faults = self._injector.plan.faults
        return [faults[index].seconds for index in self._firing if faults[index].action == "delay"]

    def act(self, value: Any) -> Any:
        for index in self._firing:
            value = self._injector.act(index, self._name, value)
        return value


class _Injector:
    """A plan in force."""

    def __init__(self, plan: FaultPlan, folder: Path) -> None:
        self.plan, self._folder = plan, folder
        self._lock = threading.Lock()
        self._reached: Counter[str] = Counter()
        self._fired = Counter(row["fault"] for row in list_fired(folder))
        seed = f"{plan.seed}-{self._fired.total()}"  # a resumed run doesn't wait for the same times again
        self._random = [random.Random(f"{seed}-{i}") for i in range(len(plan.faults))]
        began = time.monotonic()
        self._due = [began + self._wait(i) for i in range(len(plan.faults))]
        self._clock = time.time
        self._over = threading.Event()
        if any(fault.point is None for fault in plan.faults):
            threading.Thread(target=self._run, name="agentrl-faults", daemon=True).start()

    def close(self) -> None:
        """Inject nothing more; the wall clock is as it was."""
        self._over.set()
        time.time = self._clock

    def reached(self, name: str) -> _Reached:
        """A point is reached; what fires there is logged."""
        with self._lock:
            self._reached[name] += 1
            firing = [i for i, fault in enumerate(self.plan.faults) if fault.point == name and self._fires(i)]
            for index in firing:
                self._log(index)
        return _Reached(self, name, firing)

    def act(self, index: int, name: str, value: Any) -> Any:
        """Perform a fault, but for a delay, which the point itself takes.

        Returns:
            The value, garbled or shortened where that is what it does.
        """
        fault = self.plan.faults[index]
        match fault.action:
            case "kill":
                self._signal(fault, self._random[index], signal.SIGKILL)
            case "stop":
                self._signal(fault, self._random[index], signal.SIGSTOP)
            case "drop":
                raise InfraError(f"fault {index} of the plan: the reply at {name} was dropped")
            case "full_disk":
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (fault {index} of the plan, at {name})")
            case "garble":
                return _garble(value, self._random[index])
            case "late_tool":
                return 0.0
            case "lock_store":
                threading.Thread(target=_lock, args=(self._folder, fault.seconds), daemon=True).start()
            case "jump_clock":
                before = time.time
                time.time = lambda: before() + fault.seconds
        return value

    def _wait(self, index: int) -> float:
        every = self.plan.faults[index].every
        return self._random[index].expovariate(1 / every) if every else 0.0

    def _fires(self, index: int) -> bool:
        fault = self.plan.faults[index]
        if self._fired[index] >= fault.times or (fault.action in ("kill", "stop") and not _running(fault)):
            return False
        if fault.nth is not None and fault.point is not None:
            return self._reached[fault.point] >= fault.nth
        if fault.chance is not None:
            return self._random[index].random() < fault.chance
        return time.monotonic() >= self._due[index]

    def _log(self, index: int) -> None:
        """Written and flushed before the fault happens, which may be the process's end."""
        fault = self.plan.faults[index]
        self._fired[index] += 1
        self._due[index] = time.monotonic() + self._wait(index)
        row = {"fault": index, "time": time.time(), "pid": os.getpid(), **fault.model_dump(exclude_defaults=True)}
        if fault.point is not None:
            row["reached"] = self._reached[fault.point]
        with open(self._folder / LOG, "ab") as file:
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _run(self) -> None:
        """Fire what has no point, when its time has come."""
        own = [i for i, fault in enumerate(self.plan.faults) if fault.point is None]
        while not self._over.wait(TICK):
            for index in own:
                if not self._fires(index):
                    continue
                with self._lock:
                    self._log(index)
                self.act(index, "", None)

    def _signal(self, fault: Fault, chance: random.Random, number: signal.Signals) -> None:
        if fault.target == "sandbox":
            sandboxes = sorted(processes.sandboxes().items())
            with suppress(Exception):  # whatever a backend raises where it ended a moment ago
                chance.choice(sandboxes)[1]()
            return
        running = _running(fault)
        if not running:
            return
        pid = chance.choice(running)
        own_group = fault.target != "driver"
        if number == signal.SIGSTOP:
            target = f"-{pid}" if own_group else str(pid)
            wake = ["sh", "-c", f"sleep {fault.seconds}; kill -s CONT -- {target}"]
            nowhere = subprocess.DEVNULL  # it may outlive this process, and whoever reads what this one writes
            subprocess.Popen(wake, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)
        with suppress(ProcessLookupError):
            os.killpg(pid, number) if own_group else os.kill(pid, number)


TICK = 0.05
"""Seconds between two looks at the clock for faults without a point."""


def _running(fault: Fault) -> list[Any]:
    """Return what the fault could kill: process numbers, or ids of sandboxes."""
    if fault.pid_file is not None:
        with suppress(OSError, ValueError):
            pid = int(Path(fault.pid_file).read_text())
            os.kill(pid, 0)
            return [pid]
        return []
    if fault.target == "sandbox":
        return sorted(processes.sandboxes())
    return [os.getpid()] if fault.target == "driver" else processes.running(fault.target)


def _garble(value: Any, chance: random.Random) -> Any:
    """Bytes with one of them changed; a file, or the largest of a folder, cut to half of its length."""
    if isinstance(value, bytes | bytearray):
        place = chance.randrange(len(value)) if value else 0
        return value[:place] + bytes([value[place] ^ 0xFF]) + value[place + 1 :] if value else value
    files = [file for file in value.rglob("*") if file.is_file()] if value.is_dir() else [value]
    largest = max(files, key=lambda file: (file.stat().st_size, str(file)))
    os.truncate(largest, largest.stat().st_size // 2)
    return value


def _lock(folder: Path, seconds: float) -> None:
    """Keep the run's session store from being written to."""
    with suppress(sqlite3.Error):
        other = sqlite3.connect(folder / "sessions.db", timeout=seconds, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        other.execute("ROLLBACK")
        other.close()

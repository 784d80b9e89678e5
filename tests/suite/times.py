"""What every test and fixture takes: seconds, CPU seconds and memory, of its process and of all that it started.

`pytest --times=FOLDER` writes a line a phase into a file for each worker; `python -m tests.suite.times FOLDER` prints
them as tables, and `make times` does both. CPU and memory are those of the worker's process tree: what a server spends
for a test counts, what the Docker daemon spends does not. A process whose parent has ended (a worker of a node of Ray's
that was killed) is known by a variable of its environment, and counts too. Memory is a tree's share of what is resident
(PSS: a page that forked processes share is divided among them), at its highest during the test; a thread looks once a
second, so that shorter tests show what they were found with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TICK = os.sysconf("SC_CLK_TCK")
MARK = "AGENTRL_TIMES_OF"
"""A variable of the environment, with the number of the process that is measured."""
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
LOOK_SECONDS = 1.0
MOMENT = 0.02
"""Seconds for which a reading of CPU seconds serves as a phase ends: what a shorter one spends is the next one's."""
WAITED_SECONDS = 0.1
"""A phase for so much of which its thread neither computed nor waited for a core has waited for something else."""
OPENS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "socket.bind"})
"""Audit events of what a busy machine may make late."""


@dataclass(frozen=True)
class Spent:
    """What one phase of a test, or a fixture, took: seconds, CPU seconds, and MB at the highest."""

    name: str
    phase: str
    seconds: float
    cpu: float
    memory_mb: float
    waits: bool = False
    """Whether it started a process, opened a port, or waited for more than the odd moment."""


def processes(root: int) -> Iterator[int]:
    """A process and all that descend from it, as far as their parents live."""
    left = [root]
    while left:
        process = left.pop()
        yield process
        left += _children(process)


def _children(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{process}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())


class Tree:
    """A process, all that descend from it, and those of them whose parents have ended."""

    def __init__(self, root: int) -> None:
        self._root, self._mark = root, f"{MARK}={root}".encode()
        os.environ[MARK] = str(root)
        self._orphans: set[int] = set()
        self._strangers: set[int] = set()
        self._last: dict[int, tuple[int, float]] = {}
        self._lost = 0.0
        self._lock = threading.Lock()

    def processes(self) -> Iterator[int]:
        """All that live now, as far as is known."""
        for root in (self._root, *self._orphans):
            yield from processes(root)

    def look(self) -> None:
        """Find those whose parents have ended since: the first process of the machine has them now."""
        firsts = set(_children(1))
        with self._lock:
            for process in firsts - self._orphans - self._strangers:
                (self._orphans if self._is_marked(process) else self._strangers).add(process)
            self._orphans &= firsts
            self._strangers &= firsts

    def cpu_seconds(self) -> float:
        """CPU seconds of all, ended ones included: by who awaited them, or as they were last seen."""
        with self._lock:
            now = dict(filter(None, map(_cpu_of, self.processes())))
            for process in self._last.keys() - now.keys():
                self._lost += 0.0 if self._was_awaited(process, now) else self._last[process][1]
            self._last = now
            return sum(spent for _, spent in now.values()) + self._lost

    def _was_awaited(self, process: int, now: Mapping[int, object]) -> bool:
        """Whether one that lives is the parent, or the parent of a parent that ended as well, and has its seconds."""
        while process in self._last and process not in now:
            process = self._last[process][0]
        return process in now

    def _is_marked(self, process: int) -> bool:
        with contextlib.suppress(OSError):
            return self._mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        return False


def _cpu_of(process: int) -> tuple[int, tuple[int, float]] | None:
    """A process, its parent, and its CPU seconds with those of the children that it awaited."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return process, (int(fields[1]), sum(map(int, fields[11:15])) / TICK)
    return None


class Memory:
    """A tree's share of what is resident.

    To ask the kernel for a process's share it walks all its pages, which slowed the whole suite down by a half: each
    look asks for those that are new or have grown by a half, else for one, and takes the others' to be the part of the
    resident pages that it was.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._parts: dict[int, tuple[float, float]] = {}
        """By process: the part of its resident pages that is its share, and how many megabytes it had then."""

    def look(self) -> float:
        """Megabytes now, after a process's share was asked for."""
        resident = self._resident()
        parts = {process: part for process, part in self._parts.items() if process in resident}
        changed = [process for process, mb in resident.items() if process not in parts or mb > 1.5 * parts[process][1]]
        for process in changed or list(parts)[:1]:
            parts.pop(process, None)  # the next look asks for another
            # At most the whole: a process that grows between the two figures seemed to share more than it had.
            parts[process] = min(1.0, _share_mb(process) / resident[process]), resident[process]
        self._parts = parts
        return self.now()

    def now(self) -> float:
        """Megabytes now, of the processes that were looked at."""
        return sum(mb * self._parts[process][0] for process, mb in self._resident().items() if process in self._parts)

    def _resident(self) -> dict[int, float]:
        found = {}
        for process in self._tree.processes():
            with contextlib.suppress(OSError):
                found[process] = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_MB
        return {process: mb for process, mb in found.items() if mb}


def _share_mb(process: int) -> float:
    """Megabytes of a process: pages that others have too are divided among them."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss: +(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 / 1e6 if found else 0.0  # it has ended, and nobody has waited for it
    return 0.0


def ready_seconds() -> float:
    """Seconds for which this thread was on a core or waited for one; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError):
        running, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
        return (int(running) + int(queued)) / 1e9
    return 0.0


class Times:
    """The plug-in of one worker."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._began = time.monotonic()
        self._peak = 0.0
        self._tree = Tree(os.getpid())
        self._memory = Memory(self._tree)
        self._held = 0.0
        self._cpu, self._read = 0.0, float("-inf")
        self._opened = 0
        sys.addaudithook(self._audit)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _audit(self, event: str, _: tuple[object, ...]) -> None:
        self._opened += event in OPENS

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._held = self._memory.look()
            self._peak = max(self._peak, self._held)
            self._tree.look()
            self._tree.cpu_seconds()  # else one that is killed amid a phase, its parent with it, would count nothing

    def _cpu_seconds(self, within: float) -> float:
        """The tree's, at most so long ago: three phases of a short test would read all of /proc six times."""
        if time.monotonic() - self._read > within:
            self._cpu = self._tree.cpu_seconds()
            self._read = time.monotonic()
        return self._cpu

    @contextlib.contextmanager
    def _measured(self, name: str, phase: str) -> Iterator[None]:
        began, ready, cpu = time.monotonic(), ready_seconds(), self._cpu_seconds(LOOK_SECONDS)
        outer, self._peak, opened = self._peak, self._held, self._opened
        try:
            yield
        finally:
            seconds, used = time.monotonic() - began, self._cpu_seconds(MOMENT) - cpu
            waits = self._opened > opened or seconds - (ready_seconds() - ready) > WAITED_SECONDS
            line = Spent(name, phase, round(seconds, 3), round(used, 3), round(self._peak, 3), waits)
            self._peak = max(self._peak, outer)
            self._file.write(json.dumps(line.__dict__) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._measured(item.nodeid, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._measured(item.nodeid, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._measured(item.nodeid, "teardown"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function" or fixturedef.baseid == "":
            return (yield)
        with self._measured(f"{fixturedef.baseid}::{fixturedef.argname}", "fixture"):
            return (yield)

    def pytest_unconfigure(self) -> None:
        seconds, cpu = time.monotonic() - self._began, self._tree.cpu_seconds()
        self._file.write(json.dumps(Spent("all", "process", round(seconds, 3), round(cpu, 3), 0.0).__dict__) + "\n")
        self._ended.set()
        self._thread.join()
        self._file.close()


def install(config: pytest.Config, folder: Path) -> None:
    """Measure this process's tests into a file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(Times(folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl"))


def read(folder: Path) -> list[Spent]:
    """All that the workers of a run have written."""
    return [Spent(**json.loads(line)) for file in sorted(folder.glob("*.jsonl")) for line in file.open()]


def tests(spent: Iterable[Spent]) -> list[Spent]:
    """A row a test: its phases added up, `setup` where more than half of the seconds are of fixtures that it began."""
    phases: dict[str, list[Spent]] = defaultdict(list)
    for one in spent:
        if one.phase not in ("fixture", "process"):
            phases[one.name].append(one)
    return [
        Spent(
            name,
            "setup" if 2 * sum(p.seconds for p in of if p.phase == "setup") > sum(p.seconds for p in of) else "test",
            sum(p.seconds for p in of),
            sum(p.cpu for p in of),
            max(p.memory_mb for p in of),
            any(p.waits for p in of),
        )
        for name, of in phases.items()
    ]


def folder_of(name: str) -> str:
    """The folder that a test or fixture is in."""
    return name.partition("::")[0].rpartition("/")[0]


def main() -> None:
    """Print a run's tables: folders, then the ten dearest tests and fixtures of each; or the tests that wait."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=10, help="rows a folder")
    parser.add_argument("--waiting", action="store_true", help="print the tests that a busy machine may make late")
    arguments = parser.parse_args()
    spent = read(arguments.folder)
    if arguments.waiting:
        print("\n".join(row.name for row in tests(spent) if row.waits))
        return
    rooms: dict[str, list[Spent]] = defaultdict(list)
    for row in tests(spent):
        rooms[folder_of(row.name)].append(row)
    ranked = sorted(rooms.items(), key=lambda room: -sum(row.seconds for row in room[1]))
    print(f"{'seconds':>8} {'CPU':>8} {'MB':>7} {'tests':>6}")
    for folder, rows in ranked:
        print(f"{_figures(rows)} {len(rows):6}  {folder}")
    print(f"{_figures([row for _, rows in ranked for row in rows])} {sum(len(rows) for _, rows in ranked):6}  all")
    whole = [one for one in spent if one.phase == "process"]
    print(f"{_figures(whole)} {'':6}  with imports, collection and what lies between tests")
    for folder, rows in ranked:
        fixtures = [one for one in spent if one.phase == "fixture" and folder_of(one.name) == folder]
        print(f"\n{folder}")
        for row in sorted([*rows, *fixtures], key=lambda row: -row.seconds)[: arguments.most]:
            kind = "" if row.phase == "test" else row.phase
            print(f"{_figures([row])} {kind:>7} {row.name.rpartition('/')[2][:150]}")


def _figures(rows: list[Spent]) -> str:
    peak = max((row.memory_mb for row in rows), default=0)
    return f"{sum(row.seconds for row in rows):8.1f} {sum(row.cpu for row in rows):8.1f} {peak:7.0f}"


if __name__ == "__main__":
    main()

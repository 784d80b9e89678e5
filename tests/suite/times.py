"""What every test and fixture takes: seconds, CPU seconds and memory, of its process and of all that it started.

`pytest --times=FOLDER` writes a line a phase into a file for each worker; `python -m tests.suite.times FOLDER` prints
them as tables, and `make times` does both. CPU and memory are those of the worker's process tree: what a server spends
for a test counts, what the Docker daemon spends does not. Memory is a tree's share of what is resident (PSS: a page
that forked processes share is divided among them), at its highest during the test; a thread looks once a second, so
that shorter tests show what they were found with.
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
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TICK = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
LOOK_SECONDS = 1.0
WAITED_SECONDS = 0.1
"""A phase that took so much longer than what it computed has waited, for a core or for something else."""
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
        with contextlib.suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{process}/task").iterdir():
                left += map(int, (task / "children").read_text().split())


def cpu_seconds(root: int) -> float:
    """CPU seconds of a tree, those of its ended and awaited processes included."""
    ticks = 0
    for process in processes(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICK


class Memory:
    """A tree's share of what is resident.

    To ask the kernel for a process's share it walks all its pages, which slowed the whole suite down by a half: each
    look asks for one of them, new ones first, and takes the others' to be the part of the resident pages that it was.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._parts: dict[int, float] = {}

    def look(self) -> float:
        """Megabytes now, after a process's share was asked for."""
        resident = self._resident()
        parts = {process: part for process, part in self._parts.items() if process in resident}
        for process in [new for new in resident if new not in parts] or list(parts)[:1]:
            parts.pop(process, None)  # the next look asks for another
            parts[process] = _share_mb(process) / resident[process]
        self._parts = parts
        return self.now()

    def now(self) -> float:
        """Megabytes now, of the processes that were looked at."""
        return sum(mb * self._parts.get(process, 0.0) for process, mb in self._resident().items())

    def _resident(self) -> dict[int, float]:
        found = {}
        for process in processes(self._root):
            with contextlib.suppress(OSError):
                found[process] = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_MB
        return {process: mb for process, mb in found.items() if mb}


def _share_mb(process: int) -> float:
    """Megabytes of a process: pages that others have too are divided among them."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss: +(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 / 1e6 if found else 0.0  # it has ended, and nobody has waited for it
    return 0.0


class Times:
    """The plug-in of one worker."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._peak = 0.0
        self._memory = Memory(os.getpid())
        self._opened = 0
        sys.addaudithook(self._audit)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _audit(self, event: str, _: tuple[object, ...]) -> None:
        self._opened += event in OPENS

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._peak = max(self._peak, self._memory.look())

    @contextlib.contextmanager
    def _measured(self, name: str, phase: str) -> Iterator[None]:
        began, cpu = time.monotonic(), cpu_seconds(os.getpid())
        outer, self._peak, opened = self._peak, self._memory.now(), self._opened
        try:
            yield
        finally:
            seconds, used = time.monotonic() - began, cpu_seconds(os.getpid()) - cpu
            waits = self._opened > opened or seconds - used > WAITED_SECONDS
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
    """A row a test: its phases added up."""
    phases: dict[str, list[Spent]] = defaultdict(list)
    for one in spent:
        if one.phase != "fixture":
            phases[one.name].append(one)
    return [
        Spent(
            name,
            "test",
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
    """Print a run's tables: folders, then the dearest tests and fixtures of each; or the tests that wait."""
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
    for folder, rows in ranked:
        fixtures = [one for one in spent if one.phase == "fixture" and folder_of(one.name) == folder]
        print(f"\n{folder}")
        for row in sorted([*rows, *fixtures], key=lambda row: -row.seconds)[: arguments.most]:
            kind = "fixture" if row.phase == "fixture" else ""
            print(f"{_figures([row])} {kind:>7} {row.name.rpartition('/')[2][:150]}")


def _figures(rows: list[Spent]) -> str:
    peak = max((row.memory_mb for row in rows), default=0)
    return f"{sum(row.seconds for row in rows):8.1f} {sum(row.cpu for row in rows):8.1f} {peak:7.0f}"


if __name__ == "__main__":
    main()

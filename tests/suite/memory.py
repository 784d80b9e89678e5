"""The whole suite in little memory: what a run takes of the machine, at its highest, and a bound that it must keep."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.suite.schedule import part_of

BOUND_GB = 12.0
"""Three workers and two heavy real parts, which held 10.3 GB."""
AIM_MINUTES = 30
WORKER_GB = 0.8
"""A worker that is larger after a module gives memory back; a new one has 0.4."""
GROWTH_GB = 0.3
"""By how much it has to grow before it does so again."""
LOOK_SECONDS = 0.5


def used_gb() -> float:
    """What programs hold of this machine's memory: caches, which are given back, left out."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) / 1e6


def mark_what_is_frozen() -> None:
    """Have `gc.get_freeze_count` say 1 or 0, by what was called last.

    Python's own count walks through all that is frozen: 0.15 to 0.7 s of three million objects, at the end of each
    module and at the beginning of each run (`agentrl.common.garbage`).
    """
    freeze, unfreeze, frozen = gc.freeze, gc.unfreeze, gc.get_freeze_count() > 0

    def set_frozen(to: bool) -> None:
        nonlocal frozen
        (freeze if to else unfreeze)()
        frozen = to

    gc.__dict__.update(
        freeze=partial(set_frozen, True), unfreeze=partial(set_frozen, False), get_freeze_count=lambda: int(frozen)
    )


class PeakMemory:
    """Watches the machine from the process that hands out the tests; a run that takes more than the bound fails."""

    def __init__(self) -> None:
        self._before = used_gb()
        self.peak = 0.0
        self._times, self._began = psutil.cpu_times(), time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.peak = max(self.peak, used_gb() - self._before)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._ended.set()
        self._thread.join()
        if self.peak > BOUND_GB and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"memory at its highest: {self.peak:.1f} GB more than before, at most {BOUND_GB:g} GB are allowed"
        terminalreporter.write_line(line, red=self.peak > BOUND_GB)
        minutes, (busy, whole) = (time.monotonic() - self._began) / 60, self._cpu_seconds()
        terminalreporter.write_line(f"it took {minutes:.1f} minutes (aim: {AIM_MINUTES} on two quiet cores)")
        terminalreporter.write_line(f"cores were busy for {busy / whole:.0%} of the time, {busy:,.0f} CPU seconds")

    def _cpu_seconds(self) -> tuple[float, float]:
        """CPU seconds of the machine in which it was busy, and all that there were."""
        spent = [now - then for now, then in zip(psutil.cpu_times(), self._times, strict=True)]
        named = dict(zip(self._times._fields, spent, strict=True))
        whole = sum(spent) - named["guest"] - named["guest_nice"]  # which are in the first two, too
        return whole - named["idle"] - named["iowait"], whole


class GiveBack:
    """Gives back what tests have freed, which the C library would keep for this process, and spares the collector.

    What collection has made, with all that it imported, is half a gigabyte of objects that stay to the end. They are
    frozen: each of many full collections, one a call of `train`, took most of a second to look at all of them. Memory
    is given back after a part and after a module that has grown again, not after each module, for the same reason.
    """

    def __init__(self) -> None:
        self._kept = WORKER_GB * 1e9

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()
            gc.enable()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                self.module_ended(part_ended=nextitem is None or part_of(nextitem.nodeid) != part_of(item.nodeid))

    def module_ended(self, *, part_ended: bool) -> None:
        process = psutil.Process()
        if part_ended or process.memory_info().rss > self._kept:
            gc.unfreeze()
            gc.collect()
            with contextlib.suppress(AttributeError):  # of glibc alone
                ctypes.CDLL(None).malloc_trim(0)
            self._kept = max(WORKER_GB * 1e9, process.memory_info().rss + GROWTH_GB * 1e9)
        if not gc.get_freeze_count():  # a test has undone it
            gc.freeze()


def install(config: pytest.Config) -> None:
    """Watch a run that hands out tests to workers; in each of them, keep to what its tests hold."""
    mark_what_is_frozen()
    if not sys.platform.startswith("linux"):
        return
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(GiveBack())
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(PeakMemory())

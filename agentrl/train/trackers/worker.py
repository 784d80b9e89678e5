"""Passes a run's metrics on to back ends, each in a thread of its own: no run fails or waits for one.

The threads read metrics.jsonl, so nothing waits in memory, and nothing is lost where a back end is slow, fails for a
while, or the process is killed: each goes on after the last step that its back end has.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import orjson

from agentrl.errors import AgentRLError, brief, missing_extra
from agentrl.train.trackers.base import TrackedRun, Tracker

METRICS = "metrics.jsonl"
logger = logging.getLogger(__name__)


class Trackers:
    """All back ends of a run.

    Each gives one warning, at the first thing that goes wrong: its package is missing, opening it or writing failed, or
    it is too slow. metrics.jsonl has every row in any case.

    Attributes:
        patience: seconds that `close` waits for all back ends together.
    """

    patience = 20.0

    def __init__(
        self, about: TrackedRun, kinds: Mapping[str, type[Tracker]], warn: Callable[[str], None] = logger.warning
    ) -> None:
        self._about, self._warn = about, warn
        self._kinds = {name: kind for name, kind in kinds.items() if self._is_installed(name, kind)}
        self._workers: list[_Worker] = []
        self._passed: dict[str, int] = {}  # of back ends that begin from nothing in another process

    def pass_on(self) -> None:
        """metrics.jsonl has a new row, or several."""
        if not self._workers:
            self._workers = [
                _Worker(name, kind, self._about, self._warn, self._passed) for name, kind in self._kinds.items()
            ]
            for worker in self._workers:
                worker.start()
        for worker in self._workers:
            worker.wake.set()

    def start_again(self) -> None:
        """A run is resumed, closed before: back ends that begin from nothing get all steps again."""
        self._passed.clear()
        if (self._about.folder / METRICS).exists():
            self.pass_on()

    def close(self) -> None:
        """Let all of them write what is left, for `patience` seconds; a later row opens them anew."""
        workers, self._workers = self._workers, []
        until = time.monotonic() + self.patience
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.join(max(until - time.monotonic(), 0.0))
            if worker.is_alive():
                worker.leave_behind(self.patience)

    def _is_installed(self, name: str, kind: type[Tracker]) -> bool:
        if not kind.package or importlib.util.find_spec(kind.package) is not None:
            return True
        missing = missing_extra(kind.package, kind.extra)
        self._warn(f"metrics={name}: {missing}; the run goes on without it")
        return False


class _Worker(threading.Thread):
    """One back end's thread: the only one that touches it."""

    def __init__(
        self, name: str, kind: type[Tracker], about: TrackedRun, warn: Callable[[str], None], passed: dict[str, int]
    ) -> None:
        super().__init__(name=f"agentrl-metrics-{name}", daemon=True)
        self.kind, self.wake = kind, threading.Event()
        self._about, self._say, self._setting = about, warn, f"metrics={name}"
        self._file, self._passed = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}-step", passed
        self._ended, self._left = threading.Event(), threading.Event()
        self._warned = self._counts = False  # counts: the back end can't tell which step it has
        self._place = self._last = 0  # bytes of metrics.jsonl that are dealt with; their last step

    def warn(self, text: str) -> None:
        """Say the first thing that goes wrong; metrics.jsonl has what is lost."""
        if not self._warned:
            self._warned = True
            self._say(f"{self._setting}: {text}; metrics.jsonl has every step")

    def end(self) -> None:
        self._ended.set()
        self.wake.set()

    def leave_behind(self, patience: float) -> None:
        """Let it end after the step that it is at; say that so many seconds were not enough."""
        self._left.set()
        self.warn(f"it has not ended after {patience:g} s, and is left behind")

    def run(self) -> None:
        """Open the back end, pass rows on until the end, close it."""
        try:
            tracker = self.kind(self._about)
            last = tracker.last()
            self._counts, self._last = last is None, self._recall() if last is None else last
        except BaseException as error:  # packages raise what they like, SystemExit too
            self.warn(f"it can't be opened: {_describe(error)}")
            return
        while True:
            ends = self._ended.is_set()  # first: what was written before the end was asked for is read
            self.wake.clear()
            try:
                self._pass_on(tracker)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.warn(f"metrics.jsonl can't be read: {_describe(error)}")
            if ends:
                break
            self.wake.wait()
        try:
            tracker.close()
        except BaseException as error:
            self.warn(f"it can't be closed: {_describe(error)}")

    def _pass_on(self, tracker: Tracker) -> None:
        """Write the rows that it does not have. One that fails waits, or is left out if the next one does not fail."""
        failed = False
        for row, end in self._rows():
            step = int(row["step"])
            if self._left.is_set():
                return
            if step > self._last and not self._write(tracker, step, row):
                if failed:
                    return  # two in a row: it is not the row's fault
                failed = True
                continue
            failed, self._place = False, end
            if step > self._last:
                self._last = step
                if self._counts:
                    self._remember(step)

    def _write(self, tracker: Tracker, step: int, row: Mapping[str, float]) -> bool:
        for _ in range(2):
            try:
                tracker.log(step, {name: value for name, value in row.items() if name != "step"})
            except BaseException as error:
                self.warn(f"step {step} can't be written: {_describe(error)}")
            else:
                return True
        return False

    def _rows(self) -> Iterator[tuple[Mapping[str, float], int]]:
        """Whole rows that are not dealt with, each with the place where it ends."""
        with open(self._about.folder / METRICS, "rb") as file:
            file.seek(self._place)
            while (line := file.readline()).endswith(b"\n"):
                yield orjson.loads(line), file.tell()

    def _recall(self) -> int:
        if self.kind.rewritten:
            return self._passed.get(self._file, 0)
        return int(self._about.kept(self._file) or 0)

    def _remember(self, step: int) -> None:
        if self.kind.rewritten:
            self._passed[self._file] = step
        else:
            self._about.keep(self._file, str(step))


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, AgentRLError) else f"{type(error).__name__}: {brief(error)}"

"""Passes metrics on to back ends, each in a thread of its own behind a bounded queue: no run fails or waits for one."""

from __future__ import annotations

import importlib.util
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentrl.errors import AgentRLError, brief, missing_extra
from agentrl.train.trackers.base import About, Tracker

QUEUED = 1000
"""Rows that wait for a slow back end; further ones are left out."""
PATIENCE = 20.0
"""Seconds that the end of a run waits for all back ends together."""
logger = logging.getLogger(__name__)
Row = Mapping[str, float]


class Trackers:
    """All back ends of a run.

    Each gives one warning, at the first thing that goes wrong: its package is missing, opening it or writing failed, or
    it is too slow. metrics.jsonl has every row in any case.

    Args:
        about: the run.
        kinds: the back ends by name.
        warn: displays a warning; is called from any thread.
    """

    def __init__(
        self, about: About, kinds: Mapping[str, type[Tracker]], warn: Callable[[str], None] = logger.warning
    ) -> None:
        self._about, self._warn = about, warn
        self._kinds = {name: kind for name, kind in kinds.items() if self._installed(name, kind)}
        self._workers: list[_Worker] = []

    def log(self, row: Row) -> None:
        """Pass on a row: a step's metrics, and `step`."""
        self._open()
        for worker in self._workers:
            worker.put(row)

    def rewrite(self, rows: Sequence[Row]) -> None:
        """A run goes on after the last of these rows: those back ends get them again that have lost all."""
        self._open()
        for worker in self._workers:
            for row in rows if worker.kind.rewritten else ():
                worker.put(row, wait=PATIENCE)

    def close(self) -> None:
        """Let all of them write what is left, for `PATIENCE` seconds; a later row opens them anew."""
        workers, self._workers = self._workers, []
        until = time.monotonic() + PATIENCE
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.join(max(until - time.monotonic(), 0.0))
            if worker.is_alive():
                worker.warn(f"it has not ended after {PATIENCE:g} s, and is left behind")

    def _open(self) -> None:
        if not self._workers:
            self._workers = [_Worker(name, kind, self._about, self._warn) for name, kind in self._kinds.items()]
            for worker in self._workers:
                worker.start()

    def _installed(self, name: str, kind: type[Tracker]) -> bool:
        if not kind.package or importlib.util.find_spec(kind.package) is not None:
            return True
        missing = missing_extra(kind.package, kind.extra)
        self._warn(f"metrics={name}: {missing}; the run goes on without it")
        return False


class _Worker(threading.Thread):
    """One back end's thread: the only one that touches it."""

    def __init__(self, name: str, kind: type[Tracker], about: About, warn: Callable[[str], None]) -> None:
        super().__init__(name=f"agentrl-metrics-{name}", daemon=True)
        self.kind = kind
        self._about, self._say, self._setting = about, warn, f"metrics={name}"
        self._rows: queue.Queue[Row] = queue.Queue(QUEUED)
        self._ended, self._warned = threading.Event(), False

    def warn(self, text: str) -> None:
        """Say the first thing that goes wrong; metrics.jsonl has what is lost."""
        if not self._warned:
            self._warned = True
            self._say(f"{self._setting}: {text}; metrics.jsonl has every step")

    def put(self, row: Row, wait: float = 0.0) -> None:
        """Hand over a row; where the queue stays full it is left out."""
        try:
            self._rows.put(row, timeout=wait) if wait else self._rows.put_nowait(row)
        except queue.Full:
            self.warn(f"it is {QUEUED} steps behind, and gets no more until it has caught up")

    def end(self) -> None:
        """Ask it to write what is left and end."""
        self._ended.set()

    def run(self) -> None:
        """Open the back end, write rows until the end, close it."""
        try:
            tracker = self.kind(self._about)
        except BaseException as error:  # packages raise what they like, SystemExit too
            self.warn(f"it can't be opened: {_said(error)}")
            for _ in self._handed():
                pass
            return
        for row in self._handed():
            try:
                tracker.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
            except BaseException as error:
                self.warn(f"step {row['step']:g} can't be written: {_said(error)}")
        try:
            tracker.close()
        except BaseException as error:
            self.warn(f"it can't be closed: {_said(error)}")

    def _handed(self) -> Iterable[Row]:
        """The rows as they come, until the end was asked for and none is left."""
        while not (self._ended.is_set() and self._rows.empty()):
            try:
                yield self._rows.get(timeout=0.1)
            except queue.Empty:
                continue


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, AgentRLError) else f"{type(error).__name__}: {brief(error)}"

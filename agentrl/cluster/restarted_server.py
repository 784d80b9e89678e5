"""A server that is started again whenever it ends.

Where this process holds the socket that it listens on, requests wait there meanwhile (retrieval servers).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from agentrl.cluster import guard
from agentrl.cluster.server import ServerProcess
from agentrl.common import processes
from agentrl.errors import EngineError, brief


class Restarts:
    """Counts ends, and says whether what has ended is started again.

    Args:
        most: starts that are allowed again.
        within: the seconds in which they are counted; None: all there are, as `cluster.max_restarts` says.
    """

    def __init__(self, most: int, within: float | None = None) -> None:
        self._most, self._within, self._ends = most, within, list[float]()

    def allow(self) -> bool:
        """Count an end; return whether another start is allowed."""
        now = time.monotonic()
        self._ends = [end for end in self._ends if self._within is None or now - end < self._within] + [now]
        return len(self._ends) <= self._most

    def __str__(self) -> str:
        """Describe the limit, for messages."""
        return "cluster.max_restarts" if self._within is None else f"{len(self._ends)} ends within {self._within:g} s"


class RestartedServer:
    """A server process that is watched from a thread, and started again unless it ends too often.

    Args:
        name: what messages call it.
        start: starts it.
        report: called from the thread with its end, in words, before it is started again.
        restarts: how often it is started again.
        pause: seconds before it is started again.
        hopeless: the exit status with which it is given up at once.

    Attributes:
        process: the one that runs, or ran last.
        restarts: how often it was started again.
        given_up: gets its last end, in words, when it is not started again.

    Raises:
        EngineError: it could not be started at all.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], ServerProcess],
        report: Callable[[str], object],
        *,
        restarts: Restarts,
        pause: float = 0.0,
        hopeless: int | None = None,
    ) -> None:
        self._name, self._start, self._report = name, start, report
        self._allowed, self._pause, self._hopeless = restarts, pause, hopeless
        self._closing = threading.Event()
        self.restarts, self.given_up = 0, Future[str]()
        self.process = start()
        self._watcher = threading.Thread(target=self._watch, name=f"watching {name}", daemon=True)
        self._watcher.start()

    @property
    def running(self) -> bool:
        """True while the server's process is running."""
        return self.process.exit_status is None

    def stop(self) -> None:
        """Ask the server to end; it is not started again. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            processes.signal_group(self.process.pid, signal.SIGTERM)

    def close(self, seconds: float = guard.GRACE) -> None:
        """End the server; it is killed where it has not ended `seconds` after it was asked to. Idempotent."""
        self.stop()
        self.process.wait(seconds)
        self.process.kill()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            code = self.process.wait()
            end = f"{self._name} ended with {code}" + (f": {tail}" if (tail := brief(self.process.tail())) else "")
            self.process.end()
            if self._closing.is_set():
                return
            if code == self._hopeless:
                self.given_up.set_result(end)
                return
            if not self._allowed.allow():
                self.given_up.set_result(f"{end} ({self._allowed})")
                return
            self._report(end)
            if self._closing.wait(self._pause):
                return
            try:
                self.process = self._start()
            except EngineError as error:
                self.given_up.set_result(str(error))
                return
            self.restarts += 1  # afterwards: then `process` is the new one
            if self._closing.is_set():
                self.process.end()
                return

"""`agentrl replay` in a process of its own, started from the viewer's page: one at a time, with a deadline.

A replay loads a model and may start an inference server, so it is kept out of the viewer's process, and can be ended
with all that it started. What it plays goes into the run's `replays.db`; here are only its output and its end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, PositiveInt

from agentrl.cluster.server import ServerProcess
from agentrl.common.processes import signal_group
from agentrl.common.untrusted import visible_text
from agentrl.config.sections import Section
from agentrl.errors import ConfigError

MOST_LINES = 200
LINE = 2000
"""Characters of a line of output that are kept."""
GRACE = 15.0
"""Seconds that an interrupted replay may take to close its engine and sandboxes."""


class ReplayRequest(Section):
    """A page's request: the settings of `agentrl replay`, and a deadline."""

    turn: PositiveInt
    n: int = Field(default=1, ge=1, le=64)
    seed: int | None = Field(default=None, ge=0)
    model: str | None = Field(default=None, min_length=1, max_length=1000)
    minutes: float = Field(default=15.0, gt=0, le=24 * 60)
    """The replay is ended after so long."""
    trust: bool = False
    """Run the code that the run's settings name."""

    def words(self) -> Iterator[str]:
        """The settings as the command takes them."""
        for name, value in self.model_dump(exclude={"minutes", "trust"}, exclude_none=True).items():
            yield f"{name}={orjson.dumps(value).decode()}"  # in quotes, so that a name like 1e5 stays one
        if self.trust:
            yield "--trust"


@dataclass
class _Job:
    """A replay under way, or the last one.

    Attributes:
        place: the run's folder and the session's id.
        request: what was asked for.
        process: the command's.
        grace: seconds for it to end by itself once it is interrupted.
        began: by the monotonic clock.
        ended: how it ended; '' while it is under way.
        seconds: how long it took, once it has ended.
        printed: the last lines that it printed, once it has ended.
    """

    place: tuple[Path, str]
    request: ReplayRequest
    process: ServerProcess
    grace: float
    began: float = field(default_factory=time.monotonic)
    ended: str = ""
    seconds: float = 0.0
    printed: list[str] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def state(self) -> dict[str, Any]:
        """Return the replay's state for the page."""
        return {
            "request": self.request.model_dump(),
            "lines": self.printed or _read_lines(self.process.log),
            "seconds": self.seconds if self.ended else time.monotonic() - self.began,
            "ended": self.ended,
        }


class Replays:
    """Starts replays, one at a time, and ends them; safe for several threads.

    Args:
        grace: seconds for a command to end by itself once it is interrupted.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._watcher: threading.Thread | None = None

    def start(self, run: Path, session: str, request: ReplayRequest) -> None:
        """Start a replay.

        Raises:
            ConfigError: one is under way, or the command can't name the session.
        """
        if session in ("", "..") or Path(session).name != session:
            raise ConfigError(f"session {session!r} can't be replayed: its id is no name of a file")
        with self._lock:
            if self._job is not None and not self._job.ended:
                raise ConfigError(
                    f"a replay of session {self._job.place[1]!r} is under way; cancel it, or wait for its end"
                )
            command = [sys.executable, "-m", "agentrl", "replay", str(run / session), *request.words()]
            process = ServerProcess("replay", command, env={"PYTHONUTF8": "1"}, kind="replay")
            self._job = job = _Job((run, session), request, process, self._grace)
            self._watcher = threading.Thread(target=_watch, args=(job,), daemon=True)
            self._watcher.start()

    def of(self, run: Path, session: str) -> dict[str, Any] | None:
        """The state of a session's replay, if the last one that was started is of it."""
        job = self._job
        return job.state() if job is not None and job.place == (run, session) else None

    def cancel(self, run: Path, session: str) -> None:
        """End a session's replay; does nothing if none is under way."""
        job = self._job
        if job is not None and job.place == (run, session):
            job.cancelled.set()

    def close(self) -> None:
        if self._job is not None and self._watcher is not None:
            self._job.cancelled.set()
            self._watcher.join(self._grace + 10)


def _read_lines(log: Path) -> list[str]:
    """The last lines of a log, without what could steer a terminal; none once it is gone."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LINES * LINE))
            lines = deque(iter(lambda: file.readline(LINE), b""), MOST_LINES)
    except FileNotFoundError:
        return []
    return [visible_text(line.decode(errors="replace").rstrip(), keep="") for line in lines]


def _watch(job: _Job) -> None:
    """Wait for the replay's end, its deadline or its cancellation."""
    until, process = job.began + 60 * job.request.minutes, job.process
    reason = ""
    while process.exit_status is None and not reason:
        if job.cancelled.wait(0.1):
            reason = "cancelled"
        elif time.monotonic() > until:
            reason = f"ended after {job.request.minutes:g} minutes"
    if reason:
        signal_group(process.pid, signal.SIGINT)
        process.wait(job.grace)
    process.kill()
    code, job.printed = process.exit_status, _read_lines(process.log)
    process.end()
    job.seconds = time.monotonic() - job.began
    job.ended = reason or ("done" if code == 0 else f"failed with exit code {code}")

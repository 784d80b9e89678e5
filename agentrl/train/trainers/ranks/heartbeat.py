"""Heartbeats of ranks: each rank touches a file every second, and the process that waits for ranks checks the files.

A rank that was stopped, or hangs in the kernel, answers no call; the others wait for it in a collective, so a call's
timeout alone doesn't show which rank failed. A process that computes, or waits for others, has a thread that goes on
touching its file. The time without a heartbeat is counted in small steps of the waiting process's own running time, so
that a suspended machine doesn't count.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

SECOND = 1.0
"""Seconds between two heartbeats, and between two checks."""

STOPPED = 10.0
"""Seconds without a heartbeat after which a process in the kernel's state stopped is given up."""

SILENT = 120.0
"""Seconds after which any process is; a live one would have to hold Python's global lock for as long."""


def beat(file: Path) -> None:
    """Touch a file every second, in a thread that ends with the process, or when the file's folder is gone."""

    def renew() -> None:
        with contextlib.suppress(OSError):
            while True:
                file.touch()
                time.sleep(SECOND)

    threading.Thread(target=renew, name="heartbeat", daemon=True).start()


class Watch:
    """Checks the heartbeats of some processes.

    Args:
        files: each process's heartbeat file; one that does not exist yet counts as alive.
        processes: their ids.
        silent: seconds without a heartbeat after which a process is given up.
    """

    def __init__(self, files: Sequence[Path], processes: Sequence[int], silent: float = SILENT) -> None:
        self.files, self.processes, self.silent = list(files), list(processes), silent
        self._seen: list[int | None] = [None] * len(self.files)
        self._quiet = [0.0] * len(self.files)
        self._looked = time.monotonic()

    def still(self) -> dict[int, str]:
        """The processes that don't run any more, with the reason; call it about every second while waiting."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * SECOND), now
        found: dict[int, str] = {}
        for i, (file, process) in enumerate(zip(self.files, self.processes, strict=True)):
            sign = _renew(file)
            stopped = _state(process) == "T"  # and not "t", a debugger's
            if sign != self._seen[i] or (sign is None and not stopped):
                self._seen[i], self._quiet[i] = sign, 0.0
                continue
            self._quiet[i] += passed
            if self._quiet[i] >= (min(STOPPED, self.silent) if stopped else self.silent):
                what = "is stopped" if stopped else "has no heartbeat"
                found[i] = f"{what}: process {process} has not run for {self._quiet[i]:.0f} s"
        return found


def _renew(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def _state(process: int) -> str:
    """The kernel's letter for what a process does; empty where nothing can be read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""

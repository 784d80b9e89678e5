"""Notices that a process makes no progress, and writes where everything in it stands.

Whatever gets something done calls `progress()`: tokens that arrive, a turn that is stored, a forest that is computed, a
phase that begins or ends, ranks that renew their heartbeats. Where nobody has for a long time, the stacks of all
threads and of all asyncio tasks go into a file. Time in which this process did not run (a stopped process, a suspended
machine) is not counted. SIGUSR1 has the same file written at once; the interpreter's own handler writes the threads'
stacks also where the main thread hangs in a C call.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from agentrl.common.processes import descendants

TICK = 1.0
"""Seconds between two looks; longer pauses are time in which this process did not run."""
SIGNAL_FILE = "stacks-signal.txt"
_count = 0


def progress() -> None:
    """Something got done."""
    global _count
    _count += 1


def count_progress() -> int:
    """Return how often something got done so far."""
    return _count


class Watchdog:
    """Watches the process from a thread of its own; use it as a context manager.

    Args:
        folder: gets `stacks-1.txt`, `stacks-2.txt` …
        timeout: seconds without progress after which stacks are written, and again each time as many have passed;
            None never does by itself.
        hung: called with the seconds and the file each time.
    """

    def __init__(self, folder: Path, timeout: float | None, hung: Callable[[float, Path], object]) -> None:
        self._folder, self._timeout, self._hung = folder, timeout, hung
        self._over, self._requested = threading.Event(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Watchdog:
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGUSR1"):
            self._signals.enter_context(self._on_signal())
        threading.Thread(target=self._run, name="agentrl-watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._signals.close()

    def write(self) -> Path:
        """Write the stacks into the next file."""
        number = 1
        while (file := self._folder / f"stacks-{number}.txt").exists():
            number += 1
        file.write_text(stacks(self._loop))
        return file

    @contextlib.contextmanager
    def _on_signal(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._requested = True

        before = signal.signal(signal.SIGUSR1, handle)
        with open(self._folder / SIGNAL_FILE, "ab") as file:
            faulthandler.register(signal.SIGUSR1, file, chain=True)
            try:
                yield
            finally:
                faulthandler.unregister(signal.SIGUSR1)
                signal.signal(signal.SIGUSR1, before)
        if not (self._folder / SIGNAL_FILE).stat().st_size:
            (self._folder / SIGNAL_FILE).unlink()

    def _run(self) -> None:
        silence = Silence(self._timeout or float("inf"), time.monotonic())
        while not self._over.wait(silence.tick):
            with contextlib.suppress(OSError):  # a full disk must not end the watch
                if self._requested:
                    self._requested = False
                    self.write()
                if silence.lasted(time.monotonic(), count_progress()):
                    self._hung(silence.timeout, self.write())


class Silence:
    """Time without progress, counted while this process ran.

    Args:
        timeout: seconds after which it has lasted long.
        now: the time, in seconds of a monotonic clock.

    Attributes:
        seconds: how long it has lasted.
        tick: seconds after which it is to be looked at again.
    """

    def __init__(self, timeout: float, now: float) -> None:
        self.timeout, self.tick = timeout, min(TICK, timeout / 4)
        self._looked, self._count, self.seconds = now, -1, 0.0

    def lasted(self, now: float, count: int) -> bool:
        """Return whether it has lasted `timeout` seconds since the last progress, or since this was last so.

        Args:
            now: the time; called about every `tick` seconds.
            count: changes with progress.
        """
        passed, self._looked = min(now - self._looked, 2 * self.tick), now
        self.seconds = self.seconds + passed if count == self._count else 0.0
        self._count = count
        if self.seconds < self.timeout:
            return False
        self.seconds = 0.0
        return True


def stacks(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """Return the stacks of the process's threads, the loop's tasks and the child processes, as text."""
    parts = [f"process {os.getpid()}: {' '.join(sys.argv)}"]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, '?')} ({ident})\n" + "".join(traceback.format_stack(frame)))
    for task in _tasks(loop):
        state = "cancelling, " if task.cancelling() else ""
        parts.append(f"task {task.get_name()} ({state}{_list_awaited(task.get_coro())})")
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            parts.append(f"child process {pid} (state {state}): {command[:300]}")
    return "\n\n".join(parts) + "\n"


def _tasks(loop: asyncio.AbstractEventLoop | None) -> list[asyncio.Task[Any]]:
    if loop is None:
        return []
    with contextlib.suppress(RuntimeError):  # the set changed while it was read: not a loop that hangs
        return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return []


def _list_awaited(work: Any) -> str:
    """The chain of what a coroutine waits for, outermost first, a line each."""
    lines = [getattr(work, "__qualname__", str(work))]
    while work is not None:
        code: CodeType | None = None
        frame: FrameType | None = None
        for kind in ("cr", "gi", "ag"):
            code, frame = code or getattr(work, f"{kind}_code", None), frame or getattr(work, f"{kind}_frame", None)
        if code is None or frame is None:
            lines.append(f"  waits for {work!r}"[:300])
            break
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}')
        inner = (getattr(work, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
        work = next((one for one in inner if one is not None), None)
    return "\n".join(lines)

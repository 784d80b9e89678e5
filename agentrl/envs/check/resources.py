"""Resources of a process: open files, threads, child processes, asyncio tasks, files in its temporary folder."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from agentrl.common.processes import descendants

Holdings = dict[str, frozenset[str]]
"""Resources by kind, each with a name that an author recognises."""
OURS = ("agentrl-", "asyncio_")
"""Prefixes of the names of threads that agentrl or the event loop keep for the next call."""
SHARED = {"file in the working directory": ".", "file in /var/tmp": "/var/tmp", "shared memory segment": "/dev/shm"}
"""Folders that all processes of a machine, or a run, share, by what is left in them."""
SETTLE = 1.0
"""Seconds that a thread or process gets to end after it was stopped."""


def held() -> Holdings:
    """The resources of this process, after a garbage collection."""
    gc.collect()
    return {
        "open file": frozenset(_files()),
        "thread": frozenset(f"{t.name} ({t.ident})" for t in threading.enumerate() if not t.name.startswith(OURS)),
        "asyncio task": frozenset(_tasks()),
        "process": frozenset(f"{command(pid)} (pid {pid})" for pid in descendants(os.getpid())),
        "temporary file": frozenset(entry.name for entry in os.scandir(tempfile.gettempdir())),
        **{kind: frozenset(_names(folder)) for kind, folder in SHARED.items()},
    }


async def left_since(before: Holdings, settle: float = SETTLE) -> Holdings:
    """Resources that were added since `before` and are not released within `settle` seconds.

    A replaced resource (a pool's new connection in place of an old one) does not count, nor does what another program
    on this machine has made in a folder that all share, and uses.
    """
    deadline = time.monotonic() + settle
    while True:
        now = held()
        for kind, folder in SHARED.items():
            now[kind] -= _used_by_others(now[kind] - before[kind], folder)
        left = {kind: _newest(names - before[kind], len(names) - len(before[kind])) for kind, names in now.items()}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        await asyncio.sleep(SETTLE / 20)


def _newest(names: frozenset[str], number: int) -> frozenset[str]:
    return frozenset(sorted(names)[-number:]) if number > 0 else frozenset()


def _names(folder: str) -> Iterator[str]:
    try:
        yield from (entry.name for entry in os.scandir(folder))
    except OSError:
        return


def _used_by_others(names: frozenset[str], folder: str) -> frozenset[str]:
    """Those that processes other than this one and its children have open or mapped into memory, where /proc tells."""
    paths = {os.path.abspath(os.path.join(folder, name)): name for name in names}
    ours, used = {os.getpid(), *descendants(os.getpid())}, set[str]()
    for process in Path("/proc").glob("[0-9]*") if names else ():
        if int(process.name) not in ours:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                used.update(line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines())
                used.update(os.readlink(number) for number in (process / "fd").iterdir())
    return frozenset(name for path, name in paths.items() if path in used)


def command(pid: int) -> str:
    """A process's command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"
    return words[:60] or "?"


def _tasks() -> Iterator[str]:
    for task in asyncio.all_tasks():
        work = task.get_coro()
        yield f"{getattr(work, '__qualname__', work)} ({task.get_name()})"


def _files() -> Iterator[str]:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for number in os.listdir(folder):
        try:
            yield f"{os.readlink(f'{folder}/{number}')} (descriptor {number})"
        except OSError:  # the descriptor of the listing itself
            continue

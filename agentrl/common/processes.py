"""A process's descendants, which have to end with it, and what a run has started in other processes and containers."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator

_roles: dict[int, str] = {}
_sandboxes: dict[str, Callable[[], object]] = {}
_cleanups: dict[str, Callable[[], object]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cleanups.clear)  # what the parent has made is the parent's


def register(pid: int, role: str) -> None:
    """A process of ours that leads its own process group: an `engine`, or a `trainer`'s."""
    _roles[pid] = role


def forget(pid: int) -> None:
    """A registered process has ended."""
    _roles.pop(pid, None)


def register_sandbox(id: str, kill: Callable[[], object]) -> None:
    """A sandbox of ours that runs, and what kills it at once, from any thread."""
    _sandboxes[id] = kill


def forget_sandbox(id: str) -> None:
    """A sandbox is being closed."""
    _sandboxes.pop(id, None)


def sandboxes() -> dict[str, Callable[[], object]]:
    """The function that kills each running sandbox, by id."""
    return dict(_sandboxes)


def register_cleanup(name: str, work: Callable[[], object]) -> None:
    """Register a command that removes what outlives this process, where it ends without its exit handlers.

    Args:
        name: one of the same name is replaced.
        work: called from any thread, once the descendants have ended.
    """
    _cleanups[name] = work


def clean_up(seconds: float) -> None:
    """Do all registered clean-ups beside each other, and wait for them at most so long."""

    def quietly(work: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):
            work()

    works, end = list(_cleanups.items()), time.monotonic() + seconds
    threads = [threading.Thread(target=quietly, args=(work,), name=name, daemon=True) for name, work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def running(role: str) -> list[int]:
    """The registered processes of a role that live, in order."""
    return sorted(pid for pid, known in list(_roles.items()) if known == role and _parent(str(pid)) is not None)


def descendants(pid: int) -> list[int]:
    """The living processes below one, nearest first (Linux; elsewhere none are seen).

    Those whose own parent has ended are children of the process that adopted them.
    """
    below: dict[int, list[int]] = {}
    for number in os.listdir("/proc") if os.path.isdir("/proc") else ():
        parent = _parent(number) if number.isdigit() else None
        if parent is not None:
            below.setdefault(parent, []).append(int(number))
    found = [pid]
    for process in found:
        found += below.get(process, [])
    return found[1:]


def signal_group(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group, by default the one that nothing evades; one that has ended is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill(pids: Iterable[int]) -> None:
    """Kill processes, each with the group that it leads; those that have ended are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:  # with what it left behind in its group
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)


def _parent(number: str) -> int | None:
    """A process's parent; None where it has ended."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in b"ZX" else int(parent)


@contextlib.contextmanager
def keep_handlers() -> Iterator[None]:
    """Give signals to this process's own handlers again after a block in which a library sets its own.

    `ray.init` makes SIGTERM end the process at once, by a handler of Python's and one of C++, so that a run that a
    scheduler ends would save nothing; an environment of verifiers does the like.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # else none of Python's has been set
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

"""What tests start and have to end: servers and workers of ours, which run behind a guard."""

from __future__ import annotations

import contextlib
import time

import psutil

from agentrl.cluster import forking, guard

LEAVE_SECONDS = 60.0
"""How long a busy machine may take to end what has been told to."""


def servers() -> set[tuple[int, tuple[str, ...]]]:
    """Number and command of the servers and workers that this process has started."""
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            words = child.cmdline()
            if guard.__file__ in words:
                found.add((child.pid, tuple(words[2:7])))
            elif forking.__name__ in words:  # which stays, for the next worker
                found |= {(one.pid, ("a forked worker",)) for one in child.children()}
    return found


def left_beside(allowed: set[tuple[int, tuple[str, ...]]]) -> list[str]:
    """The commands of others, once those that are ending have had time to."""
    end = time.monotonic() + LEAVE_SECONDS
    while (left := servers() - allowed) and time.monotonic() < end:
        time.sleep(0.2)
    return [" ".join(words) for _, words in left]

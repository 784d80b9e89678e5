"""The limit on how often a process that ends is started again: one for the workers of a pool and for servers."""

from __future__ import annotations

import time


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

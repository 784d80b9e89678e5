"""The limit on concurrent sessions: who goes first, and how long those under way have taken."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Slots for at most `count` sessions at once.

    Of those that wait the one with the lowest priority number goes first, and of equals the one that came first. With
    a group's number as the priority the oldest group ends first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._begun: dict[int, float] = {}  # in the order of their beginnings
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @property
    def under_way(self) -> int:
        """Sessions that have a slot."""
        return len(self._begun)

    @property
    def waiting(self) -> int:
        """The number of sessions that wait for a slot."""
        return sum(not future.done() for _, _, future in self._waiting)

    def oldest(self) -> float:
        """Return the seconds since the oldest session under way began; 0 where there is none."""
        now = time.monotonic()
        return now - next(iter(self._begun.values()), now)

    @asynccontextmanager
    async def slot(self, priority: int, deadline: float | None = None) -> AsyncIterator[bool]:
        """Hold a slot, once there is one.

        Args:
            priority: the lowest number goes first.
            deadline: in seconds of `time.monotonic()`, until when to wait; None waits for ever.

        Yields:
            Whether there was one before the deadline.
        """
        arrival = next(self._arrivals)
        got = True
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self._acquire(priority, arrival)
        except TimeoutError:
            got = False
        try:
            yield got
        finally:
            if got:
                self._release(arrival)

    async def _acquire(self, priority: int, arrival: int) -> None:
        if len(self._begun) < self.count:
            self._begun[arrival] = time.monotonic()
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, arrival, future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it got a slot in the same moment
                self._release(arrival)
            raise

    def _release(self, arrival: int) -> None:
        del self._begun[arrival]
        while self._waiting and len(self._begun) < self.count:
            _, first, future = heapq.heappop(self._waiting)
            if not future.done():
                self._begun[first] = time.monotonic()
                future.set_result(None)

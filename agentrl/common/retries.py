"""Attempts at what may fail: how often, after which pauses, and for which errors."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import accumulate, islice, repeat, takewhile
from typing import TypeVar

T = TypeVar("T")


def doubling(first: float, count: int | None = None, longest: float = float("inf")) -> Iterator[float]:
    """Yield `count` pauses in seconds (None: without end), each twice the one before, and none above the longest."""
    return islice(accumulate(repeat(first), lambda pause, _: min(2 * pause, longest)), count)


def spread(pauses: Iterable[float]) -> Iterator[float]:
    """Yield pauses, each times 0.5 to 1.5, so that those who failed together don't try again together."""
    return (pause * random.uniform(0.5, 1.5) for pause in pauses)


def before(deadline: float, pauses: Iterable[float]) -> Iterator[float]:
    """Yield pauses as long as they end before a deadline, in seconds of `time.monotonic()`."""
    return takewhile(lambda pause: time.monotonic() + pause < deadline, pauses)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    failures: type[Exception] | tuple[type[Exception], ...],
    pauses: Iterable[float],
    on_failure: Callable[[Exception], float | None] = lambda error: None,
) -> T:
    """Return the result of the first attempt that succeeds; the last one's error is raised as it is.

    Args:
        attempt: called once more than there are pauses, at most.
        failures: errors after which there is another attempt.
        pauses: seconds before each further attempt; each is drawn when one has failed.
        on_failure: called with the error of each attempt that another one follows; it ends them by raising one, and may
            return the seconds that the pause is to take at least.
    """
    left = iter(pauses)
    while True:
        try:
            return await attempt()
        except failures as error:
            if (pause := next(left, None)) is None:
                raise
            pause = max(pause, on_failure(error) or 0.0)
        await asyncio.sleep(pause)

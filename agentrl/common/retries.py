"""Attempts at what may fail: how often, after which pauses, and for which errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def doubling(first: float, count: int, longest: float = float("inf")) -> list[float]:
    """Return `count` pauses in seconds, each twice as long as the one before, and none longer than the longest."""
    return [min(first * 2**number, longest) for number in range(count)]


def spread(pauses: Iterable[float]) -> Iterator[float]:
    """Yield pauses, each times 0.5 to 1.5, so that those who failed together don't try again together."""
    return (pause * random.uniform(0.5, 1.5) for pause in pauses)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    failures: type[Exception] | tuple[type[Exception], ...],
    pauses: Iterable[float],
    on_failure: Callable[[Exception], None] | None = None,
) -> T:
    """Return the result of the first attempt that succeeds; the last one's error is raised as it is.

    Args:
        attempt: called once more than there are pauses, at most.
        failures: errors after which there is another attempt.
        pauses: seconds before each further attempt.
        on_failure: called with the error of each attempt that another one follows; it ends them by raising one.
    """
    for pause in pauses:
        try:
            return await attempt()
        except failures as error:
            if on_failure is not None:
                on_failure(error)
        await asyncio.sleep(pause)
    return await attempt()

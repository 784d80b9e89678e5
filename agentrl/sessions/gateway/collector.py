"""Garbage collection in a process that only serves.

Python's collector traverses all open sessions repeatedly, and every request waits meanwhile: a tenth of a second and
more with long histories. Sealed sessions are freed without it, since they are in no reference cycle. So the objects
that exist at the start are frozen, young ones are collected in small steps, and all others rarely, since that finds
little and takes 0.2 s with 8 sessions of 128k tokens: after seconds without a request, or after ten minutes.

Only for a process of its own (`agentrl serve`): a training run's collector is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable

YOUNG, MIDDLE, NEVER = 5_000, 4, 1 << 30
"""The collector's thresholds (see `gc.set_threshold`): a collection takes 1 to 2 ms."""
CHECK_EVERY = 5.0
IDLE_SECONDS, BUSY_SECONDS = 30.0, 600.0
"""Seconds between two full collections, with and without `CHECK_EVERY` seconds free of requests before."""


@contextlib.asynccontextmanager
async def tuned_collector(
    begun: Callable[[], int], check_every: float = CHECK_EVERY, idle: float = IDLE_SECONDS
) -> AsyncIterator[None]:
    """Collect garbage so while the block runs, and as before afterwards.

    Args:
        begun: how many requests have begun so far.
        check_every: seconds between two looks at that number.
        idle: seconds between two full collections while it stays as it is.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    collecting = asyncio.ensure_future(_collect(begun, check_every, idle))
    try:
        yield
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        gc.set_threshold(*before)
        gc.unfreeze()


async def _collect(begun: Callable[[], int], check_every: float, idle: float) -> None:
    last = time.monotonic()
    while True:
        before = begun()
        await asyncio.sleep(check_every)
        if time.monotonic() - last > (idle if begun() == before else BUSY_SECONDS):
            gc.collect()
            last = time.monotonic()

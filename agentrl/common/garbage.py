"""Settings of Python's cyclic garbage collector: set for a process that keeps many sessions in memory.

Each full collection looks at every object that is left. The libraries of a run bring some hundred thousand that stay to
the end, and thousands of sessions as many more, which reference counting frees when they have ended: collections took a
third of the driver's CPU time (`benchmarks/driver_cost.py`), and found next to nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = 100_000, -1, 30
"""New objects between two collections of the youngest generation (Python's default is 700), and how many of those there
are for one of each older generation. With 10,000 in place of 100,000 collections take four times the CPU time at 5,000
sessions (docs/decisions/archive/141-what-a-turn-costs-the-driver.md). Cycles of objects are freed so much later. With
-1 each collection is one of the middle generation, which stays empty: an object that is left is looked at once, and
again only by a collection of all. Sessions' objects are left for minutes, and were looked at twice before."""
OF_A_SESSION = 300
"""Objects that the driver holds for an open session of a few turns, rounded up. As many as may be open at once are
begun without a collection: 10,000 had 25, 6 % of their CPU time (AVX2, load 6), and no object was in a cycle."""


@contextmanager
def collect_nothing_while_loading() -> Iterator[None]:
    """Collect nothing within the block, in which libraries load: what they make stays, and is old afterwards.

    Collections were 6 % of the CPU time that torch and transformers take to load.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        if not frozen:  # into the oldest generation, without a look at any
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextmanager
def collect_less_often(sessions: int = 0) -> Iterator[None]:
    """Meanwhile objects that exist already are never looked at, and new ones less often.

    Where some are frozen already, it is for longer than this: no others are, which would outlive it.

    Args:
        sessions: how many may be open at once in this process. A collection of all objects comes no later for them.
    """
    young, middle, old = THRESHOLDS
    enough = max(young, OF_A_SESSION * sessions)
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    gc.set_threshold(enough, middle, max(1, old * young // enough))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()

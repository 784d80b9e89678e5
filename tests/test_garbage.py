"""The garbage collector during a run, and after it."""

from __future__ import annotations

import gc
import weakref

from agentrl import garbage


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_a_run_leaves_in_cycles_is_found_during_it_and_the_collector_is_as_before_after_it() -> None:
    before = gc.get_threshold()
    with garbage.seldom():
        assert gc.get_threshold() != before
        assert gc.get_freeze_count()
        cycle = weakref.ref(Cycle())
        kept = [[] for _ in range(25 * garbage.THRESHOLDS[0])]
        assert cycle() is None, f"not found among {len(kept)} objects"
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()

"""The order of the suite, and what a worker keeps of its memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from tests.suite.memory import GiveBack
from tests.suite.nightly import NIGHTLY, is_nightly
from tests.suite.schedule import CACHED, FIRST, PARTS

ROOT = Path(__file__).resolve().parents[2]
PATHS = [path for paths in (*PARTS.values(), *CACHED.values(), FIRST) for path in paths]


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("path", PATHS)
def test_what_the_tables_name_is_there(path: str) -> None:
    assert list(ROOT.glob(f"{path.rstrip('/')}*"))


@pytest.mark.parametrize(("left_out", "kept"), NIGHTLY.items())
def test_what_make_test_leaves_out_is_there_and_so_is_what_stands_in_for_it(left_out: str, kept: str) -> None:
    assert not is_nightly(kept)
    for address in (left_out, kept):
        file, _, name = address.partition("[")[0].partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), address


def test_what_is_light_and_begun_first_needs_no_heavy_part() -> None:
    assert not [path for path in FIRST for heavy in PARTS.values() if path.startswith(heavy)]


@pytest.mark.slow
def test_after_a_part_cycles_are_freed_that_a_run_had_frozen_and_what_is_left_is_frozen() -> None:
    cycle = weakref.ref(Cycle())
    gc.freeze()
    try:
        GiveBack().module_ended(part_ended=True)
        assert cycle() is None
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()

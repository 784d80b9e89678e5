"""The order of the suite, and what a worker keeps of its memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from tests.suite.memory import GiveBack
from tests.suite.nightly import BY_DAY, NIGHTLY, Nightly, is_nightly, named_cases
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
        assert f"def {name or 'test_'}" in (ROOT / file).read_text(), address
    assert "::test_" in kept


@pytest.mark.parametrize("function", BY_DAY)
def test_a_matrix_that_make_test_plays_in_part_is_there(function: str) -> None:
    file, _, name = function.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


def test_each_case_that_the_tables_name_is_among_its_tests_where_these_were_collected(
    pytestconfig: pytest.Config,
) -> None:
    nightly = pytestconfig.pluginmanager.get_plugin("nightly")
    assert isinstance(nightly, Nightly)
    functions = {address.partition("[")[0] for address in named_cases()}
    cases = [test for test in nightly.tests if test.partition("[")[0] in functions]
    collected = {test.partition("[")[0] for test in cases}
    gone = [named for named in named_cases() if named.partition("[")[0] in collected]
    assert [named for named in gone if not any(case.startswith(named) for case in cases)] == []


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

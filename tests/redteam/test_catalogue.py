"""The red team's lists are long, are run, and each entry says what must not happen."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.redteam.attack import Kind, ids
from tests.redteam.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]


@cache
def functions(file: str) -> set[str]:
    """The names of a file's tests."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_five_hundred_attacks_at_least_and_several_targets_of_each_kind() -> None:
    assert sum(len(target.attacks) for target in CATALOGUE.values()) >= 500
    for kind in Kind:
        assert sum(target.kind is kind for target in CATALOGUE.values()) >= 2


@pytest.mark.parametrize("against", CATALOGUE)
def test_each_has_a_name_and_what_must_not_happen(against: str) -> None:
    attacks = CATALOGUE[against].attacks
    assert len(ids(attacks)) == len(attacks) > 2
    for attack in attacks:
        assert attack.name.strip()
        assert len(attack.must_not.split()) >= 3


@pytest.mark.parametrize("against", CATALOGUE)
def test_each_list_is_run_by_tests_that_exist(against: str) -> None:
    assert CATALOGUE[against].tests
    for test in CATALOGUE[against].tests:
        file, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in functions(file), test

"""Covering designs."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from tests.suite.pairs import of, pairs


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_two_values_meet_in_some_case_and_cases_are_fewer_than_the_product(sizes: list[int]) -> None:
    factors = {f"f{number}": [f"{number}-{value}" for value in range(size)] for number, size in enumerate(sizes)}
    cases = pairs(**factors)
    assert cases == pairs(**factors)
    assert len({tuple(case.values()) for case in cases}) == len(cases) <= len(list(product(*factors.values())))
    for one, other in combinations(factors, 2):
        met = {(case[one], case[other]) for case in cases}
        assert met == set(product(factors[one], factors[other]))
    largest = sorted(sizes)[-2:]
    assert len(cases) >= largest[0] * largest[-1] or len(sizes) == 1


def test_a_tests_share_of_a_matrix_has_the_other_factors_values() -> None:
    matrix = pairs(test=("a", "b", "c"), mode=(1, 2, 3, 4), kind=("x", "y"))
    names, cases = of(matrix, test="b")
    assert names == "mode,kind"
    assert {mode for mode, _ in cases} == {1, 2, 3, 4}
    assert {kind for _, kind in cases} == {"x", "y"}
    assert len(matrix) == 12

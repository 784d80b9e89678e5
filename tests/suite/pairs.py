"""Matrices of settings by a covering design: every pair of values of two factors is in some case, and there are few.

Most faults need one value or the meeting of two (a mode with a kind of engine), which the whole product shows again and
again. It is played by `python -m benchmarks.matrices`, which gives pytest `--whole-matrices`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

whole = False
"""Whether matrices are played whole; set before tests are collected."""


def pairs(**factors: Sequence[Any]) -> list[dict[str, Any]]:
    """Cases in which every two values of different factors meet: greedily chosen, always the same."""
    names = list(factors)
    cases = list(product(*(range(len(factors[name])) for name in names)))
    if whole or len(names) < 3:
        return [_case(factors, case) for case in cases]
    left = {pair for case in cases for pair in _met(case)}
    chosen = []
    while left:
        best = max(cases, key=lambda case: (len(left & _met(case)), [-value for value in case]))
        left -= _met(best)
        chosen.append(best)
    return [_case(factors, case) for case in sorted(chosen)]


def _met(case: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(case), 2))


def _case(factors: Mapping[str, Sequence[Any]], case: tuple[int, ...]) -> dict[str, Any]:
    return {name: factors[name][value] for name, value in zip(factors, case, strict=True)}


def of(matrix: Sequence[Mapping[str, Any]], **given: Any) -> tuple[str, list[tuple[Any, ...]]]:
    """What `pytest.mark.parametrize` takes: the other factors' values in those cases that have the given ones."""
    names = [name for name in matrix[0] if name not in given]
    found = [tuple(case[name] for name in names) for case in matrix if given.items() <= case.items()]
    return ",".join(names), found

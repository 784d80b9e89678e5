"""An evaluation's statistics, each against its definition or published tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.statistics import (
    MOST_EXACT,
    holm,
    interval,
    pass_at_k,
    pass_hat_k,
    sign_flip_p,
    t_interval,
    t_quantile,
)

SOLVED = st.lists(st.booleans(), min_size=1, max_size=7)


@pytest.mark.parametrize(("estimate", "holds"), [(pass_at_k, any), (pass_hat_k, all)])
@given(solved=SOLVED, data=st.data())
def test_pass_k_is_the_share_of_k_subsets_of_which_any_or_all_are_solutions(
    estimate: Callable[[int, int, int], float],
    holds: Callable[[tuple[bool, ...]], bool],
    solved: list[bool],
    data: st.DataObject,
) -> None:
    k = data.draw(st.integers(1, len(solved)))
    subsets = list(combinations(solved, k))
    assert estimate(len(solved), sum(solved), k) == pytest.approx(fmean(map(holds, subsets)))


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("tasks", [5, 50])
def test_the_interval_covers_the_true_mean_about_as_often_as_it_says(chance: float, tasks: int) -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(2000):
        low, high = interval([float(rng.random() < chance) for _ in range(tasks)])
        covered += low <= chance <= high
    assert (0.92 if tasks > 5 else 0.9) < covered / 2000 < (0.985 if tasks > 5 else 1.0)


def test_a_few_rewards_without_bounds_get_an_interval_that_is_wide_enough() -> None:
    """The normal interval covers the mean of four values in 86 of 100 cases."""
    rng = random.Random(3)
    covered = 0
    for _ in range(2000):
        low, high = interval([rng.gauss(5.0, 2.0) for _ in range(4)])
        covered += low <= 5.0 <= high
    assert 0.93 < covered / 2000 < 0.97


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (10, 2.228), (29, 2.045), (120, 1.980), (9999, 1.960)],
)
def test_students_t_has_the_quantiles_of_the_printed_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_the_interval_is_not_empty_when_every_task_was_solved() -> None:
    low, high = interval([1.0] * 20)
    assert low < 0.9
    assert high == 1.0


def test_scores_that_miss_a_bound_by_their_rounding_alone_are_bounded() -> None:
    """Four towers of twenty gates, all climbed, were printed as certain: mean 1.000, 95% CI [1.000, 1.000]."""
    climbed = sum([0.05] * 20)
    assert climbed > 1
    assert interval([climbed] * 4) == interval([1.0] * 4)
    assert interval([1 - climbed, 0.5]) == pytest.approx(interval([0.0, 0.5]))


def test_scores_that_differ_by_their_rounding_alone_are_equal() -> None:
    assert sign_flip_p([sum([0.05] * 20) - 1.0] * 12) == 1.0


def test_one_task_has_an_interval_where_its_reward_is_bounded_and_none_elsewhere() -> None:
    assert interval([1.0]) == pytest.approx((0.2065, 1.0), abs=1e-3)
    assert all(map(math.isnan, interval([5.0])))
    assert all(map(math.isnan, interval([])))


def test_an_interval_of_unbounded_rewards_lies_evenly_about_their_mean() -> None:
    low, high = t_interval([-3.0, 5.0, 4.0])
    assert low < 2.0 < high
    assert high - 2.0 == pytest.approx(2.0 - low)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.1, 0.25, 1.0]), max_size=8))
def test_the_paired_test_is_the_share_of_sign_assignments_at_least_as_extreme(differences: list[float]) -> None:
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    least = abs(sum(differences)) - 1e-9
    assert sign_flip_p(differences) == pytest.approx(fmean(value >= least for value in sums))


@given(st.integers(0, MOST_EXACT), st.integers(0, MOST_EXACT))
def test_for_solved_or_not_the_paired_test_is_mcnemars_exact_one(won: int, lost: int) -> None:
    n = won + lost
    if n > MOST_EXACT:
        return
    tail = sum(math.comb(n, k) for k in range(min(won, lost) + 1)) / 2**n
    assert sign_flip_p([1.0] * won + [-1.0] * lost) == pytest.approx(min(1.0, 2 * tail))


def test_with_many_changes_the_paired_test_draws_signs_and_agrees_with_the_exact_one() -> None:
    for won, lost in ((20, 20), (26, 14), (35, 5)):
        n = won + lost
        exact = min(1.0, 2 * sum(math.comb(n, k) for k in range(min(won, lost) + 1)) / 2**n)
        found = sign_flip_p([1.0] * won + [-1.0] * lost)
        assert found == pytest.approx(exact, abs=0.02)
        assert found > 0


def test_equal_policies_are_told_apart_no_more_often_than_the_test_says() -> None:
    rng, found = random.Random(5), 0
    for _ in range(400):
        differences = [(rng.random() < 0.5) - (rng.random() < 0.5) for _ in range(12)]
        found += sign_flip_p([float(value) for value in differences]) < 0.05
    assert found / 400 <= 0.06


def test_holms_p_values_are_those_of_a_worked_example_and_keep_their_places() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7]) == [0.7]
    assert holm([0.6, 0.9]) == [1.0, 1.0]

"""An evaluation's statistics, each against its definition or published tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations, permutations, product
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.stream.statistics import (
    ROUGH,
    UNSEEN,
    caution,
    holm,
    interval,
    pass_at_k,
    pass_hat_k,
    skewed_interval,
    t_quantile,
)
from agentrl.train.evaluation.suite.compare import permutation_p

SOLVED = st.lists(st.booleans(), min_size=1, max_size=7)


@pytest.mark.parametrize(("estimate", "holds"), [(pass_at_k, any), (pass_hat_k, all)])
@given(solved=SOLVED, data=st.data())
@pytest.mark.slow
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
    assert 0.94 < covered / 2000 < 0.99


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
    assert permutation_p([([1.0], [sum([0.05] * 20)])] * 12) == 1.0
    assert permutation_p([([1.0, 0.0], [0.0, sum([0.05] * 20)])] * 12) == 1.0


def test_one_task_has_an_interval_where_its_reward_is_bounded_and_none_elsewhere() -> None:
    assert interval([1.0]) == pytest.approx((0.2065, 1.0), abs=1e-3)
    assert all(map(math.isnan, interval([5.0])))
    assert all(map(math.isnan, interval([])))


def test_the_interval_of_skewed_rewards_reaches_further_to_the_side_of_the_large_ones_and_turns_with_them() -> None:
    values = [0.0, 0.1, 0.2, 0.3, 5.0]
    low, high = skewed_interval(values)
    assert high - fmean(values) > fmean(values) - low
    turned = skewed_interval([-value for value in values])
    assert turned == pytest.approx((-high, -low))
    low, high = skewed_interval([-3.0, 2.0, 7.0])
    assert high - 2.0 == pytest.approx(2.0 - low) == pytest.approx(4.303 * 5.0 / math.sqrt(3), rel=1e-3)
    assert skewed_interval([4.0, 4.0]) == (4.0, 4.0)


SKEWED: dict[str, tuple[Callable[[random.Random], float], float, int, float]] = {
    "seldom a large loss": (lambda rng: -5.0 if rng.random() < 0.1 else 1 + rng.gauss(0, 0.1), 0.4, 50, 0.955),
    "log-normal": (lambda rng: rng.lognormvariate(0, 1), math.exp(0.5), 10, 0.875),
    "heavy tail": (lambda rng: rng.lognormvariate(0, 1.5), math.exp(1.125), 50, 0.86),
}


@pytest.mark.parametrize("kind", SKEWED)
def test_the_interval_of_skewed_rewards_covers_their_mean_or_has_a_word_beside_it(kind: str) -> None:
    """Student's t covers 89, 84 and 81 of 100 of these, where this covers 98, 90 and 89."""
    draw, mean, tasks, least = SKEWED[kind]
    rng, covered, silent = random.Random(11), 0, 0
    for _ in range(400):
        values = [draw(rng) for _ in range(tasks)]
        low, high = interval(values)
        covered += low <= mean <= high
        silent += not (low <= mean <= high or caution(values))
    assert covered / 400 > least
    assert silent / 400 < 0.11


def test_an_interval_that_misses_the_mean_of_rare_rewards_says_that_it_is_rough() -> None:
    """Of 20 tasks with a reward of 10 in one of twenty, 36 in 100 samples have none: no bound of theirs reaches 0.5."""
    rng, covered, silent = random.Random(2), 0, 0
    for _ in range(400):
        values = [10.0 * (rng.random() < 0.05) for _ in range(20)]
        low, high = interval(values)
        covered += low <= 0.5 <= high
        silent += not (low <= 0.5 <= high or caution(values))
    assert covered / 400 < 0.7
    assert silent / 400 < 0.05


def test_the_word_beside_an_interval_is_for_few_or_equal_values_alone() -> None:
    assert caution([0.0] * 30 + [9.0] * 3) == ROUGH
    assert caution([0.0] * 30 + [9.0] * 6) == ""
    assert caution([3.0] * 30) == ROUGH
    assert caution([1.0] * 30) == UNSEEN
    assert caution([1.0] * 29 + [0.0]) == caution([0.5]) == caution([]) == ""
    assert caution([1.0] * 29 + [0.0], bounded=False) == ROUGH


def dealt_by_hand(tasks: list[tuple[list[float], list[float]]]) -> float:
    """The test from its definition, over permutations of the samples instead of subsets."""

    def statistic(dealt: list[tuple[list[float], list[float]]]) -> float:
        differences = [fmean(second) - fmean(first) for first, second in dealt]
        length = math.hypot(*differences)
        return round(sum(differences) / length, 9) if length > 1e-9 else 0.0

    every = [
        statistic([(list(order[: len(a)]), list(order[len(a) :])) for order, (a, _) in zip(orders, tasks, strict=True)])
        for orders in product(*(permutations(a + b) for a, b in tasks))
    ]
    observed = statistic(tasks)
    return min(1.0, 2 * min(fmean(value <= observed for value in every), fmean(value >= observed for value in every)))


SIDE = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0, 7.0]), min_size=1, max_size=2)


@settings(max_examples=30)
@given(st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=2))
def test_the_paired_test_deals_each_tasks_samples_in_all_ways(tasks: list[tuple[list[float], list[float]]]) -> None:
    assert permutation_p(tasks) == pytest.approx(dealt_by_hand(tasks))


@given(st.integers(0, 9), st.integers(0, 9))
def test_for_solved_or_not_the_paired_test_is_mcnemars_exact_one(won: int, lost: int) -> None:
    assert permutation_p(outcomes(won, lost)) == pytest.approx(
        mcnemar(won, lost), abs=0.02 if won + lost > 13 else 1e-9
    )


def outcomes(won: int, lost: int) -> list[tuple[list[float], list[float]]]:
    return [([0.0], [1.0])] * won + [([1.0], [0.0])] * lost + [([1.0], [1.0])] * 3


def mcnemar(won: int, lost: int) -> float:
    n = won + lost
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(won, lost) + 1)) / 2**n)


def test_with_many_changes_the_paired_test_draws_and_agrees_with_the_exact_one() -> None:
    for won, lost in ((20, 20), (26, 14), (35, 5)):
        found = permutation_p(outcomes(won, lost))
        assert found == pytest.approx(mcnemar(won, lost), abs=0.02)
        assert found > 0


def test_samples_of_one_task_are_dealt_alike_whether_the_ways_are_listed_or_shuffled() -> None:
    """Two tasks of ten samples on each side: 184,756 ways each."""
    tasks = [([0.0] * 7 + [1.0] * 3, [0.0] * 3 + [1.0] * 7), ([0.0] * 6 + [1.0] * 4, [0.0] * 4 + [1.0] * 6)]
    counts = range(11)
    chances = [math.comb(10, k) ** 2 / math.comb(20, 10) for k in counts]  # of k right ones of ten on the second side
    steps = [[2 * (k - 5) for k in counts]] * 2
    upper = sum(
        chances[one] * chances[other]
        for one, other in product(counts, counts)
        if (top := steps[0][one] + steps[1][other]) > 0 and top / math.hypot(steps[0][one], steps[1][other]) > 1.3415
    )
    assert permutation_p(tasks) == pytest.approx(2 * upper, abs=0.02)


NULLS: dict[str, tuple[int, int, int, Callable[[random.Random], Callable[[], float]]]] = {
    "nearly all solved": (50, 1, 8, lambda rng: lambda: float(rng.random() < 0.95)),
    "easy and hard tasks": (
        30,
        1,
        4,
        lambda rng: (lambda p: lambda: float(rng.random() < p))(rng.betavariate(0.5, 0.5)),
    ),
    "few tasks": (6, 4, 4, lambda rng: lambda: float(rng.random() < 0.5)),
    "skewed": (20, 1, 5, lambda rng: lambda: rng.lognormvariate(0, 1.5)),
}


@pytest.mark.parametrize("kind", NULLS)
@pytest.mark.slow
def test_equal_policies_are_told_apart_no_more_often_than_the_test_says(kind: str) -> None:
    """Random signs of the tasks' differences told 11 in 100 of the first and 14 of the last apart at 0.05."""
    tasks, first, second, drawn = NULLS[kind]
    rng, found = random.Random(5), []
    for _ in range(150):
        draws = [drawn(rng) for _ in range(tasks)]
        pairs = [([draw() for _ in range(first)], [draw() for _ in range(second)]) for draw in draws]
        found.append(permutation_p(pairs, drawn=499))
    for level in (0.05, 0.2, 0.5):
        assert fmean(p <= level for p in found) < level + 3 * math.sqrt(level * (1 - level) / 150)
    if kind == "skewed":  # rewards that are all different: p is uniform
        assert all(fmean(p <= level for p in found) > level - 0.11 for level in (0.2, 0.5, 0.8))


def test_more_samples_of_few_tasks_find_what_signs_of_five_differences_never_could() -> None:
    assert permutation_p([([0.0] * 8, [1.0] * 4 + [0.0] * 4)] * 5) < 0.01


@pytest.mark.slow
def test_policies_that_differ_on_tasks_and_not_in_their_mean_are_not_told_apart() -> None:
    """Without the statistic's division by its spread over tasks 38 of 100 such pairs would be."""
    rng, found = random.Random(8), 0
    for _ in range(200):
        moves = [rng.gauss(0, 1) for _ in range(20)]
        pairs = [([rng.gauss(0, 0.3) for _ in range(4)], [rng.gauss(move, 0.3) for _ in range(4)]) for move in moves]
        found += permutation_p(pairs, drawn=499) < 0.05
    assert found / 200 < 0.1


@pytest.mark.slow
def test_holms_p_values_are_those_of_a_worked_example_and_keep_their_places() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7]) == [0.7]
    assert holm([0.6, 0.9]) == [1.0, 1.0]

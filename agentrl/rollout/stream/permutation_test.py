"""A test of two policies on the same tasks, apart from the other statistics since it alone needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl.rollout.stream.statistics import ROUNDING

Array: TypeAlias = NDArray[np.float64]

MOST_EXACT = 2**13
"""Ways to deal samples that the permutation test goes through; where there are more it draws `DRAWN` of them."""
DRAWN = 10_000
MOST_LISTED = 500
"""Ways to deal one task's samples that are listed, to draw from the list; otherwise the samples are shuffled."""


def permutation_p(tasks: Sequence[tuple[Sequence[float], Sequence[float]]], drawn: int = DRAWN) -> float:
    """The two-sided p-value of a permutation test of two policies on the same tasks, stratified by task.

    Between equal policies a task's samples could have been either's: they are dealt anew within each task, as many to
    each side as it has. So p is exact for any numbers of samples, where exchanging a task's means is not: means of one
    and of eight samples have different distributions. The statistic is that of a paired t-test over tasks, which keeps
    the test valid, for many tasks, between policies that differ on single tasks and not in their mean. With one
    sample on each side the differences' signs are random (for solved or not, that is McNemar's exact test). Both tails
    count alike: p is twice the smaller, since with unequal numbers the two have different shapes.

    Where there are few ways to deal all are tried; otherwise they are drawn with a fixed seed, and the observed one
    counts among them, so that p is never 0.

    Args:
        tasks: for each task the scores of the first and of the second policy; neither is empty.
        drawn: how many ways to deal are drawn, where there are too many to try them all.

    Source: Chung and Romano, "Exact and asymptotically robust permutation tests" (2013).
    """
    mixed = [(a, b) for a, b in tasks if max(*a, *b) - min(*a, *b) > ROUNDING]
    if not mixed:
        return 1.0
    observed = [_undo_rounding(np.array([fmean(b) - fmean(a)])) for a, b in mixed]
    statistic = float(_statistic(sum(observed, np.zeros(1)), sum((one**2 for one in observed), np.zeros(1)))[0])
    sizes = [math.comb(len(a) + len(b), len(a)) for a, b in mixed]
    if math.prod(sizes) <= MOST_EXACT:
        total, squares = np.zeros(1), np.zeros(1)
        for a, b in mixed:
            every = _deals((*a, *b), len(a))
            total = np.add.outer(total, every).ravel()
            squares = np.add.outer(squares, every**2).ravel()
        return min(1.0, 2 * min(_tails(_statistic(total, squares), statistic)) / len(total))
    rng = np.random.default_rng(0)
    total, squares = np.zeros(drawn), np.zeros(drawn)
    for (a, b), size in zip(mixed, sizes, strict=True):
        dealt = _draw_deals((*a, *b), len(a), size, rng, drawn)
        total += dealt
        squares += dealt**2
    return min(1.0, 2 * (1 + min(_tails(_statistic(total, squares), statistic))) / (drawn + 1))


def _tails(statistics: Array, observed: float) -> tuple[int, int]:
    """Count the statistics at most, and at least, the observed one, but for rounding."""
    margin = ROUNDING * abs(observed)
    return int(np.sum(statistics <= observed + margin)), int(np.sum(statistics >= observed - margin))


def _deals(scores: tuple[float, ...], first: int) -> Array:
    """The differences of means, second less first, for all ways to give `first` of the scores to the first side."""
    taken = np.array([sum(part) for part in combinations(scores, first)])
    return _differences(taken, scores, first)


def _draw_deals(scores: tuple[float, ...], first: int, ways: int, rng: np.random.Generator, drawn: int) -> Array:
    """The difference for each of `drawn` random ways."""
    if ways <= MOST_LISTED:
        every = _deals(scores, first)
        return every[rng.integers(len(every), size=drawn)]
    dealt = rng.permuted(np.tile(np.array(scores), (drawn, 1)), axis=1)
    return _differences(dealt[:, :first].sum(axis=1), scores, first)


def _differences(taken: Array, scores: tuple[float, ...], first: int) -> Array:
    return _undo_rounding((sum(scores) - taken) / (len(scores) - first) - taken / first)


def _undo_rounding(differences: Array) -> Array:
    return np.where(np.abs(differences) > ROUNDING, differences, 0.0)


def _statistic(total: Array, squares: Array) -> Array:
    """The sum of differences by the root of their squares' sum, which rises with the t statistic."""
    exact = _undo_rounding(total)
    return np.divide(exact, np.sqrt(squares), out=np.zeros_like(exact), where=squares > 0)

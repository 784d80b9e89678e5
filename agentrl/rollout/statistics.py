"""What an evaluation's numbers are worth: intervals, pass@k and pass^k, a test of two policies on the same tasks.

Tasks are the unit: the samples of one task are not independent of each other, so they are averaged first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product
from statistics import NormalDist, fmean, stdev

Z = NormalDist().inv_cdf(0.975)
MOST_EXACT = 13
"""Differences up to which the permutation test goes through all signs; with more it draws `PERMUTATIONS` of them."""
PERMUTATIONS = 10_000
ROUNDING = 1e-9
"""Scores are sums, whose last bits depend on the order of their terms: twenty times 0.05 is 1.0000000000000002."""
NORMAL_FROM = 1000
"""Degrees of freedom from which Student's t is taken for normal: its quantile differs by less than 0.003."""


def interval(means: Sequence[float]) -> tuple[float, float]:
    """95 % confidence bounds of the mean over tasks; NaN where there are none.

    Wilson's score interval (1927) where all values lie in [0, 1]: a bounded variable varies at most as much as
    a coin, so it errs on the wide side, and it stays honest when every task was solved. Elsewhere Student's t, for
    which one task is too few.
    """
    n = len(means)
    bounded = n > 0 and -ROUNDING <= min(means) <= max(means) <= 1 + ROUNDING
    if n < (1 if bounded else 2):
        return math.nan, math.nan
    if not bounded:
        return t_interval(means)
    mean = min(max(fmean(means), 0.0), 1.0)
    centre = (mean + Z * Z / (2 * n)) / (1 + Z * Z / n)
    margin = Z / (1 + Z * Z / n) * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
    return max(centre - margin, 0.0), min(centre + margin, 1.0)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence bounds of the mean by Student's t; NaN for fewer than two values."""
    n = len(values)
    if n < 2:
        return math.nan, math.nan
    mean, margin = fmean(values), t_quantile(n - 1) * stdev(values) / math.sqrt(n)
    return mean - margin, mean + margin


def t_quantile(freedom: int) -> float:
    """The t with 95 % of Student's distribution between -t and t."""
    if freedom >= NORMAL_FROM:
        return Z
    low, high = 1.0, 13.0  # of one degree of freedom it is 12.706
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 0.95 else (low, middle)
    return low


def _t_within(t: float, freedom: int) -> float:
    """The share of Student's distribution between -t and t, for a whole number of degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    term = math.cos(angle) if freedom % 2 else 1.0
    total = 0.0
    for step in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * step / (step + 1)
    inner = math.sin(angle) * total
    return (angle + inner) * 2 / math.pi if freedom % 2 else inner


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimate 1 - C(n-c, k) / C(n, k) of the chance that one of k sessions solves a task.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021).
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimate C(c, k) / C(n, k) of the chance that all of k sessions solve a task, written pass^k.

    Source: Yao et al., "tau-bench" (arXiv:2406.12045).
    """
    return math.comb(correct, k) / math.comb(n, k)


def sign_flip_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of a paired permutation test: how often random signs give as large a sum as there is.

    Under the null hypothesis each task's difference could as well have been the other way round. With few differences
    that are not 0 all signs are tried (for solved or not, that is McNemar's exact test); with more, signs are drawn
    with a fixed seed, and the observed ones count among them, so that p is never 0.
    """
    changed = [value for value in differences if abs(value) > ROUNDING]
    if not changed:
        return 1.0
    least = abs(sum(changed)) * (1 - 1e-9)  # equal sums differ in their last bits by the order of the terms
    if len(changed) <= MOST_EXACT:
        sums = [abs(sum(signs)) for signs in product(*((value, -value) for value in changed))]
        return sum(value >= least for value in sums) / len(sums)
    rng, total, extreme = random.Random(0), sum(changed), 1
    for _ in range(PERMUTATIONS):
        bits = rng.getrandbits(len(changed))
        flipped = sum(value for place, value in enumerate(changed) if bits >> place & 1)
        extreme += abs(total - 2 * flipped) >= least
    return extreme / (PERMUTATIONS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that the chance of any false finding stays as stated (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, greatest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        greatest = max(greatest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = greatest
    return adjusted

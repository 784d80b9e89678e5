"""Statistics of evaluations: intervals, pass@k and pass^k, and Holm's correction (`permutation_test` has the test).

Tasks are the unit: the samples of one task are not independent of each other, so they are averaged first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, fmean, stdev

Z = NormalDist().inv_cdf(0.975)
ROUNDING = 1e-9
"""Scores are sums, whose last bits depend on the order of their terms: twenty times 0.05 is 1.0000000000000002."""
NORMAL_FROM = 1000
"""Degrees of freedom from which Student's t is taken for normal: its quantile differs by less than 0.003."""
LEAST_SKEWNESS = 1e-6
"""Below it the inverse of Hall's transformation is 0/0 to rounding, and its limit is taken."""
LEAST_CARRIED = 5.0
"""Effective values below which an interval is called rough: with fewer, coverage was seen to fall far below 90 %."""
ROUGH = "rough: too few tasks differ"
UNSEEN = "if no reward is outside [0, 1]"


def interval(means: Sequence[float], *, bounded: bool | None = None) -> tuple[float, float]:
    """95 % confidence bounds of the mean over tasks; NaN where there are none.

    Wilson's score interval (1927) where all values lie in [0, 1]: a bounded variable varies at most as much as
    a coin, so it errs on the wide side, and it stays honest when every task was solved. Elsewhere `skewed_interval`,
    for which one task is too few. `caution` says where neither can be trusted.

    Args:
        means: each task's.
        bounded: rewards are in [0, 1]; by default that is so where the means are.
    """
    n = len(means)
    bounded = in_unit_range(means) if bounded is None else bounded and n > 0
    if n < (1 if bounded else 2):
        return math.nan, math.nan
    if not bounded:
        return skewed_interval(means)
    mean = min(max(fmean(means), 0.0), 1.0)
    centre = (mean + Z * Z / (2 * n)) / (1 + Z * Z / n)
    margin = Z / (1 + Z * Z / n) * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
    return max(centre - margin, 0.0), min(centre + margin, 1.0)


def in_unit_range(values: Sequence[float]) -> bool:
    """Return whether there are values, and all lie in [0, 1] but for their rounding."""
    return len(values) > 0 and -ROUNDING <= min(values) <= max(values) <= 1 + ROUNDING


def skewed_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence bounds of the mean of values that may be skewed; NaN for fewer than two.

    Student's t, and Hall's cubic transformation of it, which removes the skewness: on each side the wider of the two,
    at most twice t: the inverse is too steep where its cube root is near 0.
    Rewards that are seldom large make t's upper bound too low; Hall's lower bound is the too high one. On normal values
    the result is a few percent wider than t, a quarter with five.

    Source: Hall, "On the removal of skewness by transformation" (1992).
    """
    n = len(values)
    if n < 2:
        return math.nan, math.nan
    mean, deviation = fmean(values), stdev(values)
    if not deviation:
        return mean, mean
    quantile = t_quantile(n - 1) / math.sqrt(n)
    biased = deviation * math.sqrt((n - 1) / n)
    skewness = fmean(((value - mean) / biased) ** 3 for value in values)
    low, high = sorted(_hall(side, skewness, n) for side in (quantile, -quantile))
    below, above = (min(max(quantile, reach), 2 * quantile) for reach in (high, -low))
    return mean - deviation * below, mean + deviation * above


def _hall(value: float, skewness: float, n: int) -> float:
    """The studentised mean whose transform is a value: the inverse of t + at^2/3 + a^2t^3/27 + a/6n, a the skewness."""
    shifted = value - skewness / (6 * n)
    if abs(skewness) < LEAST_SKEWNESS:
        return shifted
    return 3 * (math.cbrt(1 + skewness * shifted) - 1) / skewness


def caution(values: Sequence[float], *, bounded: bool | None = None) -> str:
    """Return the warning beside an interval that can't be relied on; "" where there is nothing.

    An interval is as good as the values that carry it. Their effective number is the sample's size by its kurtosis: n
    for a fair coin, n/3 for normal values, k where k of n differ from all the others. Where large rewards are rare,
    most small samples have none of them, and no method covers the mean.
    """
    if len(values) < 2:
        return ""
    centre = fmean(values)
    squares = [(value - centre) ** 2 for value in values]
    spread = max(squares) > ROUNDING**2
    if in_unit_range(values) if bounded is None else bounded:
        return "" if spread else UNSEEN
    carried = sum(squares) ** 2 / sum(square * square for square in squares) if spread else 0.0
    return ROUGH if carried < LEAST_CARRIED else ""


@cache
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


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that the chance of any false finding stays as stated (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, greatest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        greatest = max(greatest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = greatest
    return adjusted

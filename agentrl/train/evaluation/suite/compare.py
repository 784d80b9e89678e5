"""Two results compared, task by task: by how much the second differs from the first, and whether that is chance.

Tasks are paired by their ids and data. A difference is tested by dealing each task's samples anew (`permutation_p`),
and over the parts of a suite p-values are adjusted (Holm), so that a suite of twenty parts does not fail every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl.envs.data import identity
from agentrl.errors import ConfigError
from agentrl.rollout.episodes import edits
from agentrl.rollout.stream.statistics import ROUNDING, caution, holm, skewed_interval
from agentrl.train.evaluation.suite.results import Results

ALPHA = 0.05
Array: TypeAlias = NDArray[np.float64]
MOST_EXACT = 2**13
"""Ways to deal samples that the permutation test goes through; where there are more it draws `DRAWN` of them."""
DRAWN = 10_000
MOST_LISTED = 500
"""Ways to deal one task's samples that are listed, to draw from the list; otherwise the samples are shuffled."""


@dataclass(frozen=True)
class _Change:
    """A task's mean scores."""

    task: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """The second's gain over the first; what the order of a sum's terms decides is no difference."""
        found = self.after - self.before
        return found if abs(found) > ROUNDING else 0.0


@dataclass(frozen=True)
class PartComparison:
    """A part of two results.

    Attributes:
        tasks: how many both have, with the same data.
        unpaired: how many only one of them has, or whose data changed.
        before: the mean over the common tasks in the first result; so is `after` in the second.
        low: with `high`, the 95 % confidence bounds of the mean difference; NaN where there are none.
        caution: what has to be said beside the bounds; "" where there is nothing.
        p: the chance of such a difference, or a larger one, between equal policies; adjusted over the parts.
        changes: the tasks whose mean changed, the greatest loss first.
    """

    name: str
    tasks: int
    unpaired: int
    before: float
    after: float
    low: float
    high: float
    caution: str
    p: float
    changes: Sequence[_Change]

    @property
    def difference(self) -> float:
        """The mean difference."""
        return self.after - self.before

    def verdict(self, alpha: float) -> str:
        """`worse`, `better`, or `` where the difference may be chance."""
        if self.p >= alpha or not self.difference:
            return ""
        return "worse" if self.difference < 0 else "better"


@dataclass(frozen=True)
class Comparison:
    """All parts that two results have in common.

    Attributes:
        names: the two policies.
        parts: in the order of the second result.
        missing: parts that only one of them has.
        alpha: below this p a difference counts.
        edited: the scores of either that people changed, in words.
    """

    names: tuple[str, str]
    parts: Sequence[PartComparison]
    missing: Sequence[str]
    alpha: float = ALPHA
    edited: Sequence[str] = ()

    @property
    def worse(self) -> list[str]:
        """The parts in which the second is worse."""
        return [part.name for part in self.parts if part.verdict(self.alpha) == "worse"]


def compare(before: Results, after: Results, alpha: float = ALPHA, *, accept_changed_data: bool = False) -> Comparison:
    """Compare a result with an earlier one.

    Raises:
        ConfigError: they have no task in common, or are of different data.
    """
    if not accept_changed_data and (changed := list(changed_data(before, after))):
        raise ConfigError(
            f"the results are of different data: {'; '.join(changed)}. Measure both on the same, or compare the tasks "
            "that are the same in both by accept_changed_data=true (agentrl compare: --accept-changed-data)"
        )
    found = [
        _part(name, before.parts[name]["scores"], part["scores"])
        for name, part in after.parts.items()
        if name in before.parts
    ]
    paired = [part for part in found if part.tasks]
    if not paired:
        raise ConfigError(
            f"the results have no task in common (parts {', '.join(before.parts)} and {', '.join(after.parts)})"
        )
    adjusted = holm([part.p for part in paired])
    parts = [replace(part, p=p) for part, p in zip(paired, adjusted, strict=True)]
    missing = [name for name in {**before.parts, **after.parts} if name not in {part.name for part in paired}]
    told = [
        f"{name}, {which} {line}"
        for which, results in (("before", before), ("after", after))
        for name, part in results.parts.items()
        for line in edits.describe_edits(part)
    ]
    return Comparison((before.policy, after.policy), parts, missing, alpha, told)


def changed_data(before: Results, after: Results) -> Iterator[str]:
    """Say how the data of parts that both results have differs."""
    for name in [name for name in after.parts if name in before.parts]:
        one, other = before.parts[name], after.parts[name]
        known = [identity.read(part.get(identity.KEY) or {}) for part in (one, other)]
        if changed := identity.differences(*known):
            yield f"in {name}, {'; '.join(changed)}"
            continue
        digests: dict[str, set[str]] = {}
        for task in one["scores"]:
            digests.setdefault(task["task"], set()).add(task["digest"])
        found = [(task["task"], task["digest"]) for task in other["scores"]]
        if odd := [task for task, digest in found if digest not in digests.get(task, {digest})]:
            yield f"in {name}, {len(odd)} tasks have the same id and other content, such as {odd[0]!r}"


def _part(name: str, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> PartComparison:
    earlier, later = dict(_scores(first)), dict(_scores(second))
    common = [key for key in earlier if key in later]
    pairs = [_Change(key[0], fmean(earlier[key]), fmean(later[key])) for key in common]
    differences = [pair.difference for pair in pairs]
    varied = differences if any(differences) else []  # none changed: nothing says how much they vary
    low, high = skewed_interval(varied)
    return PartComparison(
        name,
        tasks=len(pairs),
        unpaired=len({key[0] for key in {**earlier, **later} if key not in common}),
        before=fmean(pair.before for pair in pairs) if pairs else 0.0,
        after=fmean(pair.after for pair in pairs) if pairs else 0.0,
        low=low,
        high=high,
        caution=caution(varied, bounded=False),
        p=permutation_p([(earlier[key], later[key]) for key in common]),
        changes=sorted((pair for pair in pairs if pair.difference), key=lambda pair: (pair.difference, pair.task)),
    )


def _scores(scores: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], Sequence[float]]]:
    """The scores of each task that has any, by id and data."""
    for task in scores:
        if task["scores"]:
            yield (task["task"], task["digest"]), task["scores"]


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

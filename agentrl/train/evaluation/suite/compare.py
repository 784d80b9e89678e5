"""Two results compared, task by task: by how much the second differs from the first, and whether that is chance.

Tasks are paired by their ids and data. A difference is tested by dealing each task's samples anew (`permutation_p`),
and over the parts of a suite p-values are adjusted (Holm), so that a suite of twenty parts does not fail every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from agentrl.envs.data import identity
from agentrl.errors import ConfigError
from agentrl.rollout.episodes import edits
from agentrl.rollout.stream.permutation_test import permutation_p
from agentrl.rollout.stream.statistics import ROUNDING, caution, holm, skewed_interval
from agentrl.train.evaluation.suite.results import Results

ALPHA = 0.05


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

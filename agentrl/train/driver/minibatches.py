"""A step's groups in parts of nearly equal trained tokens, each of which makes an update; drawn anew for each epoch.

Advantages are the whole step's: baselines, moving means and what is standardised over a batch don't know of parts. What
a loss is divided by is the part's own, so each update is as large as that of a step which has its groups alone. A
group is never divided; nor are groups that are views of one group (`Group.by_agent`), or that a pair compares.

Groups are dealt in the seed's order, each to the part with the fewest trained tokens; of some such deals the most even
one is taken. Largest first would be more even still, and the same parts in nearly every epoch. Groups without a trained
token count in denominators, so they are dealt out by number.

Forests hold groups that are together in all epochs (`Forest.updates`): they are computed as often as epochs are, and
what a token is compared with (`Rows.old_logp`, `ref_logp`) is computed once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.rollout.stream.seeds import derive
from agentrl.train.algorithms.credit import Credit, NodeKey, trained_tokens
from agentrl.train.forest.forest import Membership
from agentrl.types import Group

DEALS = 8
"""The number of deals, of which the most even one is taken. With 16 groups in 4 parts, their sizes log-normal by
0.7, the largest part has then 14 % of the mean more than the smallest; it would be 37 % with one deal, and 11 %
with twice as many."""


@dataclass(slots=True)
class _Members:
    """Groups, by their indices, and their trained tokens."""

    groups: list[int] = field(default_factory=list)
    tokens: int = 0

    def take(self, other: _Members) -> None:
        self.groups += other.groups
        self.tokens += other.tokens


def updates_of(
    groups: Sequence[Group], credit: Credit, config: AlgoConfig, seed: int
) -> dict[str, tuple[Membership, ...]]:
    """Return each group's update in each epoch, by its id: one of at most `config.minibatches`.

    There are fewer where fewer groups have a trained token; one, with nothing to train, where none has.

    Args:
        groups: the batch, of one agent each.
        credit: theirs, with denominators over the batch.
        config: the number of parts and of epochs.
        seed: of the step.

    Raises:
        InvalidInput: a session is in two groups.
    """
    home = _home(groups)
    rng = random.Random(derive(seed, "minibatches"))
    units, counts = _units(groups, credit, home), _counts(groups, credit, home)
    found: dict[str, list[Membership]] = {group.id: [] for group in groups}
    for _ in range(config.epochs):
        parts = min((_deal(units, config.minibatches, rng) for _ in range(DEALS)), key=_unevenness)
        for place, part in enumerate(rng.sample(parts, len(parts))):
            own = math.fsum(counts[index] for index in part.groups)
            member = Membership(place, math.fsum(counts) / own if own else 1.0)
            for name in {groups[index].id for index in part.groups}:
                found[name].append(member)
    return {name: tuple(members) for name, members in found.items()}


def describe_updates(metrics: Mapping[str, float], config: AlgoConfig) -> str:
    """A sentence where a step made fewer updates than the settings ask for; '' where it did not, or made none."""
    made = metrics.get("minibatches", 0.0)
    if not 0 < made < config.minibatches:
        return ""
    return (
        f"fewer groups of a step than algo.minibatches={config.minibatches} had tokens to train: such steps make an "
        "update with each of these groups (`minibatches` in metrics.jsonl)"
    )


def _home(groups: Sequence[Group]) -> dict[str, int]:
    home: dict[str, int] = {}
    for index, session in ((index, session) for index, group in enumerate(groups) for session in group.sessions):
        if home.setdefault(session.id, index) != index:
            raise InvalidInput("session ids must be unique within a batch")
    return home


def _units(groups: Sequence[Group], credit: Credit, home: Mapping[str, int]) -> list[_Members]:
    """The groups with what belongs to each of them."""
    joined = list(range(len(groups)))

    def first(index: int) -> int:
        while joined[index] != index:
            index = joined[index]
        return index

    def join(one: int, other: int) -> None:
        one, other = sorted((first(one), first(other)))
        joined[other] = one

    by_name: dict[str, int] = {}
    for index, group in enumerate(groups):
        for name in dict.fromkeys((group.id, group.view_of or group.id)):
            join(by_name.setdefault(name, index), index)
    for pair in credit.pairs or ():
        join(home[pair.chosen[0]], home[pair.rejected[0]])
    units: dict[int, _Members] = {}
    for index, group in enumerate(groups):
        units.setdefault(first(index), _Members()).take(_Members([index], sum(_tokens(group, credit.shares).values())))
    return list(units.values())


def _tokens(group: Group, shares: Mapping[NodeKey, object]) -> dict[NodeKey, int]:
    found: dict[NodeKey, int] = {}
    for session in group.sessions:
        ends = session.partly_used()
        for node in session.nodes:
            if shares.get((session.id, node.id)):
                found[session.id, node.id] = trained_tokens(node, ends.get(node.id))
    return found


def _deal(units: Sequence[_Members], most: int, rng: random.Random) -> list[_Members]:
    """The units in parts: at most so many, and at most as many as units with a trained token; at least one."""
    parts = [_Members() for _ in range(max(1, min(most, sum(unit.tokens > 0 for unit in units))))]
    for unit in rng.sample(units, len(units)):
        least = min(parts, key=lambda part: (part.tokens if unit.tokens else 0, len(part.groups)))
        least.take(unit)
    return parts


def _unevenness(parts: Sequence[_Members]) -> int:
    """The difference in trained tokens between the largest part and the smallest."""
    return max(part.tokens for part in parts) - min(part.tokens for part in parts)


def _counts(groups: Sequence[Group], credit: Credit, home: Mapping[str, int]) -> list[float]:
    """Each group's part of the batch's denominator; where credit doesn't say, its loss's weight."""
    if credit.counts is not None:
        left = dict(credit.counts)
        return [left.pop(group.id, 0.0) for group in groups]  # once, where groups have one id
    if credit.pairs is not None:
        weights = [0.0] * len(groups)
        for pair in credit.pairs:
            weights[home[pair.chosen[0]]] += pair.weight
        return weights
    return [
        math.fsum(
            tokens * share.weight
            for key, tokens in _tokens(group, credit.shares).items()
            for share in credit.shares[key]
        )
        for group in groups
    ]

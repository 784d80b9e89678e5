"""A step's groups in parts of nearly equal trained tokens, each of which makes an update of its own.

Advantages are the whole step's: baselines, moving means and what is standardised over a batch don't know of parts. What
a loss is divided by is the part's own, so each update is as large as that of a step which has its groups alone. A
group is never divided; nor are groups that are views of one group (`Group.by_agent`), or that a pair compares.

The largest go first, each to the part with the fewest trained tokens; the seed decides among equal ones. Groups without
a trained token count in denominators, so they are dealt out by number. The seed also draws the parts' order, for each
epoch anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.rollout.seeds import derive
from agentrl.train.credit import Credit, NodeAdvantage, NodeKey, trained_tokens
from agentrl.types import Group


@dataclass(frozen=True, slots=True)
class Part:
    """What an update is made from.

    Attributes:
        groups: in the batch's order.
        credit: theirs, with the part's own denominators.
        updates: of each epoch the place of its update; see `agentrl.train.forest.Forest`.
    """

    groups: list[Group]
    credit: Credit
    updates: tuple[int, ...]


@dataclass(slots=True)
class _Members:
    """Groups, by their indices, and their trained tokens."""

    groups: list[int] = field(default_factory=list)
    tokens: int = 0

    def take(self, other: _Members) -> None:
        self.groups += other.groups
        self.tokens += other.tokens


def parts_of(groups: Sequence[Group], credit: Credit, config: AlgoConfig, seed: int) -> list[Part]:
    """The batch in at most `config.minibatches` parts, in the order of the first epoch's updates.

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
    shares = _dealt(_units(groups, credit, home), config.minibatches, rng)
    orders = [rng.sample(range(len(shares)), len(shares)) for _ in range(config.epochs)]
    counts = _counts(groups, credit, home)
    total = math.fsum(counts)
    found = []
    for number, share in enumerate(shares):
        own = math.fsum(counts[index] for index in share.groups)
        members = [groups[index] for index in sorted(share.groups)]
        part = _scaled(credit, members, total / own if own else 1.0)
        found.append(Part(members, part, tuple(order[number] for order in orders)))
    return sorted(found, key=lambda part: part.updates)


def joined(credit: Credit, parts: Sequence[Part]) -> Credit:
    """The batch's credit with the parts' denominators, in the order of the credit that it was made from."""
    shares = {key: each for part in parts for key, each in part.credit.shares.items()}
    pairs = None if credit.pairs is None else [pair for part in parts for pair in part.credit.pairs or ()]
    return replace(credit, shares={key: shares.get(key, each) for key, each in credit.shares.items()}, pairs=pairs)


def told(metrics: Mapping[str, float], config: AlgoConfig) -> str:
    """A sentence where a step made fewer updates than the settings ask for; '' where it did not, or made none."""
    made = metrics.get("minibatches", 0.0)
    if not 0 < made < config.minibatches:
        return ""
    return (
        f"fewer groups of a step than algo.minibatches={config.minibatches} had tokens to train: such steps make an "
        "update with each of these groups (`minibatches` in metrics.jsonl)"
    )


def _home(groups: Sequence[Group]) -> dict[str, int]:
    """The index of each session's group."""
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
        units.setdefault(first(index), _Members()).take(_Members([index], _trained(group, credit)))
    return list(units.values())


def _trained(group: Group, credit: Credit) -> int:
    """The group's trained tokens."""
    return sum(_tokens(group, credit.shares).values())


def _tokens(group: Group, shares: Mapping[NodeKey, object]) -> dict[NodeKey, int]:
    """The trained tokens of each node of a group."""
    found: dict[NodeKey, int] = {}
    for session in group.sessions:
        ends = session.partly_used()
        for node in session.nodes:
            if shares.get((session.id, node.id)):
                found[session.id, node.id] = trained_tokens(node, ends.get(node.id))
    return found


def _dealt(units: Sequence[_Members], most: int, rng: random.Random) -> list[_Members]:
    """The units in parts: at most so many, and at most as many as units with a trained token; at least one."""
    parts = [_Members() for _ in range(max(1, min(most, sum(unit.tokens > 0 for unit in units))))]
    order = rng.sample(units, len(units))
    for unit in sorted(order, key=lambda unit: -unit.tokens):
        least = min(parts, key=lambda part: (part.tokens if unit.tokens else 0, len(part.groups)))
        least.take(unit)
    return parts


def _counts(groups: Sequence[Group], credit: Credit, home: Mapping[str, int]) -> list[float]:
    """What each group adds to the batch's denominator; where credit doesn't say, what its loss weighs."""
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


def _scaled(credit: Credit, groups: Sequence[Group], factor: float) -> Credit:
    """The credit of some groups, with weights times `factor`."""
    own = {session.id for group in groups for session in group.sessions}
    shares = {
        key: tuple(_times(share, factor, credit.targets_weighted) for share in each)
        for key, each in credit.shares.items()
        if key[0] in own
    }
    pairs = credit.pairs
    if pairs is not None:
        pairs = [replace(pair, weight=pair.weight * factor) for pair in pairs if pair.chosen[0] in own]
    return replace(credit, shares=shares, pairs=pairs)


def _times(share: NodeAdvantage, factor: float, targets: bool) -> NodeAdvantage:
    scaled = replace(share, weight=share.weight * factor)
    if targets and share.returns is not None:
        return replace(scaled, returns=[value / factor for value in share.returns])
    return scaled

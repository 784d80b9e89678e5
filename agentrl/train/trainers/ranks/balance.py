"""Assign forests to data-parallel ranks by cost, attention included.

A token costs its matrix products, which grow with the square of the model's width, and its attention, which
grows with the width times the tokens it sees; so many short trees and one deep path of as many tokens are
different loads. Most expensive first, each to the cheapest rank. Where that leaves a rank idle or far behind,
the costliest forest is split between its trees: a forest's loss is a sum, so this changes no gradient.

The plan is made by the process that has the forests; a rank gets its share of them, and the lengths of the others'. All
ranks get the same number of micro-batches of each update, since experts and pipelines are collective; missing ones are
filled with a forest of one token. A forest has one rank, which keeps what is known of its tokens, so where it is a part
of other updates in other epochs all of these are balanced together.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.train.forest.forest import PAIRS, Forest, Membership, sequence_count
from agentrl.train.forest.pictures import patches_of

WIDTHS = 6
"""A token's matrix products cost as much as attending to this many tokens for each channel of the model's width.

Matrices of a dense layer: about 12 width^2 multiplications; attention: 2 width for each key."""

TOLERANCE = 1.1
"""The costliest rank's cost, over the mean, from which a forest is split."""


@dataclass(frozen=True, slots=True)
class ForestWork:
    """A forest, or whole trees of one.

    Attributes:
        forest: what to compute.
        origin: the index of the forest that it is a part of; -1 for a filler.
        offset: its first token's index there.
    """

    forest: Forest
    origin: int = -1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """A data-parallel rank's part of a batch.

    Attributes:
        works: its micro-batches; none where the batch has no forest.
        lengths: the tokens of each data-parallel rank's micro-batches.
        sequences: how many sequences the batch has, on all ranks; see `sequence_count`.
    """

    works: list[ForestWork]
    lengths: list[list[int]]
    sequences: int

    @property
    def forests(self) -> list[Forest]:
        """The micro-batches' forests."""
        return [work.forest for work in self.works]


@dataclass(frozen=True, slots=True)
class Division:
    """The division of batches over a group of ranks.

    Attributes:
        copies: of each rank, the number of its data-parallel rank; ranks of one number get the same share.
        width: the model's hidden size.
        multiple: what the number of micro-batches must be a multiple of (pipelines that are interleaved).
    """

    copies: tuple[int, ...]
    width: int
    multiple: int = 1

    def shares(self, forests: Sequence[Forest]) -> list[Share]:
        """Each rank's share of a batch; the same object for ranks that have the same."""
        copies = max(self.copies) + 1
        plan = assign(forests, copies, self.width, self.multiple) if forests else [[] for _ in range(copies)]
        lengths = [[len(work.forest) for work in works] for works in plan]
        own = [Share(works, lengths, sequence_count(forests)) for works in plan]
        return [own[copy] for copy in self.copies]


Update = tuple[int, int]
"""An epoch, and the place of one of its updates."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A work with what it costs, and the updates that it is a part of."""

    work: ForestWork
    cost: float
    updates: tuple[Update, ...]

    @classmethod
    def of(cls, work: ForestWork, width: int) -> _Load:
        return cls(work, cost(work.forest, width), updates_of(work.forest))


def updates_of(forest: Forest) -> tuple[Update, ...]:
    """The updates that a forest is a part of; where it doesn't say, the only one."""
    members = forest.updates or (Membership(0),)
    return tuple((epoch, member.place) for epoch, member in enumerate(members) if member.place >= 0)


def cost(forest: Forest, width: int) -> float:
    """Return what a forest costs, in tokens attended to; a patch of an image costs what a token does."""
    return WIDTHS * width * (len(forest) + patches_of(forest.fields)) + float((forest.position + 1).sum())


def assign(forests: Sequence[Forest], copies: int, width: int, multiple: int = 1) -> list[list[ForestWork]]:
    """Each data-parallel rank's micro-batches: as many for each, and as many of each update.

    Args:
        forests: a step's.
        copies: data-parallel ranks.
        width: the model's hidden size.
        multiple: what the number of micro-batches must be a multiple of (pipelines that are interleaved).
    """
    loads = [_Load.of(ForestWork(forest, index), width) for index, forest in enumerate(forests)]
    plan = _assign(loads, copies)
    for update in sorted({update for load in loads for update in load.updates}):
        for _ in range(4 * copies if copies > 1 else 0):
            heaviest = _overload(plan, update)
            parts = [] if heaviest is None else _split(heaviest.work, width)
            if len(parts) < 2:
                break
            loads = [load for load in loads if load is not heaviest] + [_Load.of(part, width) for part in parts]
            plan = _assign(loads, copies)
    return _fill([[load.work for load in rank] for rank in plan], multiple)


def _assign(loads: Sequence[_Load], copies: int) -> list[list[_Load]]:
    """The costliest first, each to the rank that is cheapest in the costliest of its updates."""
    plan: list[list[_Load]] = [[] for _ in range(copies)]
    totals = [Counter[Update]() for _ in range(copies)]
    for load in sorted(loads, key=lambda load: (-load.cost, load.work.origin, load.work.offset)):
        own = [[total[update] for update in load.updates] for total in totals]
        to = min(range(copies), key=lambda rank: (max(own[rank]), sum(own[rank])))
        plan[to].append(load)
        totals[to].update(dict.fromkeys(load.updates, load.cost))
    return [sorted(rank, key=lambda load: (load.work.origin, load.work.offset)) for rank in plan]


def _overload(plan: Sequence[Sequence[_Load]], update: Update) -> _Load | None:
    """The costliest load of an update's costliest rank, where that one is far behind the others."""
    ranks = [[load for load in rank if update in load.updates] for rank in plan]
    costs = [sum(load.cost for load in rank) for rank in ranks]
    if max(costs) <= TOLERANCE * sum(costs) / len(costs):
        return None
    return max(ranks[costs.index(max(costs))], key=lambda load: load.cost)


def _fill(plan: Sequence[Sequence[ForestWork]], multiple: int) -> list[list[ForestWork]]:
    updates = [work.forest.updates for rank in plan for work in rank]
    members = {(epoch, member.place): member for each in updates for epoch, member in enumerate(each)}
    epochs = max(map(len, updates), default=0)
    filled = [list(rank) for rank in plan]

    def fill(counts: Sequence[int], updates: tuple[Membership, ...]) -> None:
        most = -(-max(1, *counts) // multiple) * multiple
        for works, count in zip(filled, counts, strict=True):
            works += [ForestWork(dataclasses.replace(idle_forest(), updates=updates))] * (most - count)

    for update, member in sorted(members.items()):
        counts = [sum(update in updates_of(work.forest) for work in rank) for rank in plan]
        fill(counts, tuple(member if epoch == update[0] else Membership(-1) for epoch in range(epochs)))
    fill([len(works) for works in filled], (Membership(-1),) * epochs)
    return filled


def _split(work: ForestWork, width: int) -> list[ForestWork]:
    """The work in two parts, split between trees nearest to half the cost; in one, where it is one tree."""
    forest = work.forest
    roots = torch.nonzero(forest.position == 0).flatten()[1:]
    if not len(roots):
        return [work]
    spent = torch.cumsum(WIDTHS * width + forest.position + 1.0, 0)
    at = int(roots[(spent[roots - 1] - spent[-1] / 2).abs().argmin()])
    return [
        ForestWork(trees(forest, 0, at), work.origin, work.offset),
        ForestWork(trees(forest, at, len(forest)), work.origin, work.offset + at),
    ]


def trees(forest: Forest, start: int, stop: int) -> Forest:
    """The trees that lie from `start` to `stop`, both between trees."""
    inside = (forest.target >= start) & (forest.target < stop)

    def part(name: str, tensor: Tensor) -> Tensor:
        if name in PAIRS:
            return tensor[inside] - start
        # a copy: a slice is sent to another process with all that it was cut from
        return tensor[start:stop] - start if name == "end" else tensor[start:stop].clone()

    fields = {field.name: getattr(forest, field.name) for field in dataclasses.fields(forest)}
    cut: dict[str, Any] = {name: part(name, value) for name, value in fields.items() if isinstance(value, Tensor)}
    if forest.sequences is not None:
        place = torch.full((len(forest),), -1)
        place[start:stop] = torch.arange(stop - start)
        cut["sequences"] = forest.sequences.moved(place)
    cut["fields"] = {name: column[start:stop] for name, column in forest.fields.items()}
    return dataclasses.replace(forest, **cut)


def idle_forest() -> Forest:
    """One untrained token, for ranks that only take part in collectives."""
    zero, none = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    nothing = torch.zeros(1)
    return Forest(
        token_ids=zero,
        position=zero,
        end=zero + 1,
        node_id=zero - 1,
        session_id=zero - 1,
        agent_id=zero - 1,
        weight=nothing,
        advantage=nothing,
        temperature=nothing + 1,
        behaviour_logp=nothing,
        version=zero - 1,
        predictor=none,
        target=none,
    )

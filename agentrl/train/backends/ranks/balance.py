"""Assign forests to data-parallel ranks by cost, attention included.

A token costs its matrix products, which grow with the square of the model's width, and its attention, which
grows with the width times the tokens it sees; so many short trees and one deep path of as many tokens are
different loads. Most expensive first, each to the cheapest rank. Where that leaves a rank idle or far behind,
the costliest forest is split between its trees: a forest's loss is a sum, so this changes no gradient.

The plan is made by the process that has the forests; a rank gets its share of them, and the lengths of the others'. All
ranks get the same number of micro-batches, since experts and pipelines are collective; missing ones are filled with a
forest of one token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.train.forest import PAIRS, Forest, by_update, sequence_counts

WIDTHS = 6
"""A token's matrix products cost as much as attending to this many tokens for each channel of the model's width.

Matrices of a dense layer: about 12 width^2 multiplications; attention: 2 width for each key."""

TOLERANCE = 1.1
"""How far over the mean the costliest rank may be before a forest is split."""


@dataclass(frozen=True, slots=True)
class Work:
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
    """What a data-parallel rank has of a batch.

    Attributes:
        works: its micro-batches; none where the batch has no forest.
        lengths: the tokens of each data-parallel rank's micro-batches.
        sequences: how many sequences the forests of each update have, on all ranks; see `sequence_counts`.
    """

    works: list[Work]
    lengths: list[list[int]]
    sequences: Mapping[tuple[int, ...], int]

    @property
    def forests(self) -> list[Forest]:
        """The micro-batches' forests."""
        return [work.forest for work in self.works]


@dataclass(frozen=True, slots=True)
class Division:
    """How a group of ranks divides batches.

    Attributes:
        copies: of each rank, the number of its data-parallel rank; ranks of one number get the same share.
        width: the model's hidden size.
        multiple: what the number of micro-batches must be a multiple of (pipelines that are interleaved).
    """

    copies: tuple[int, ...]
    width: int
    multiple: int = 1

    def shares(self, forests: Sequence[Forest]) -> list[Share]:
        """Each rank's share of a batch, of each update's forests; the same object for ranks that have the same."""
        copies = max(self.copies) + 1
        plan: list[list[Work]] = [[] for _ in range(copies)]
        for updates, part in by_update(forests).items():
            places = [index for index, forest in enumerate(forests) if forest.updates == updates]
            for works, more in zip(plan, assign(part, copies, self.width, self.multiple), strict=True):
                works += [_placed(work, updates, places) for work in more]
        lengths = [[len(work.forest) for work in works] for works in plan]
        counts = sequence_counts(forests)
        own = [Share(works, lengths, counts) for works in plan]
        return [own[copy] for copy in self.copies]


def cost(forest: Forest, width: int) -> float:
    """What a forest costs, in tokens attended to."""
    return WIDTHS * width * len(forest) + float((forest.position + 1).sum())


def assign(forests: Sequence[Forest], copies: int, width: int, multiple: int = 1) -> list[list[Work]]:
    """Each data-parallel rank's micro-batches, as many for each.

    Args:
        forests: a step's.
        copies: data-parallel ranks.
        width: the model's hidden size.
        multiple: what the number of micro-batches must be a multiple of (pipelines that are interleaved).
    """
    works = [Work(forest, index) for index, forest in enumerate(forests)]
    plan = _assigned(works, copies, width)
    for _ in range(4 * copies if copies > 1 else 0):
        loads = [sum(cost(work.forest, width) for work in rank) for rank in plan]
        if max(loads) <= TOLERANCE * sum(loads) / copies:
            break
        heaviest = max(plan[loads.index(max(loads))], key=lambda work: cost(work.forest, width))
        parts = _split(heaviest, width)
        if len(parts) == 1:
            break
        works = [work for work in works if work is not heaviest] + parts
        plan = _assigned(works, copies, width)
    count = max(1, *(len(rank) for rank in plan))
    count = -(-count // multiple) * multiple
    return [rank + [Work(idle_forest())] * (count - len(rank)) for rank in plan]


def _placed(work: Work, updates: tuple[int, ...], places: Sequence[int]) -> Work:
    """The work with its forest's index in the batch; a filler keeps a rank busy in an update."""
    if work.origin < 0:
        return dataclasses.replace(work, forest=dataclasses.replace(work.forest, updates=updates))
    return dataclasses.replace(work, origin=places[work.origin])


def _assigned(works: Sequence[Work], copies: int, width: int) -> list[list[Work]]:
    plan: list[list[Work]] = [[] for _ in range(copies)]
    loads = [0.0] * copies
    for work in sorted(works, key=lambda work: (-cost(work.forest, width), work.origin, work.offset)):
        to = loads.index(min(loads))
        plan[to].append(work)
        loads[to] += cost(work.forest, width)
    return [sorted(rank, key=lambda work: (work.origin, work.offset)) for rank in plan]


def _split(work: Work, width: int) -> list[Work]:
    """The work in two parts, split between trees nearest to half the cost; in one, where it is one tree."""
    forest = work.forest
    roots = torch.nonzero(forest.position == 0).flatten()[1:]
    if not len(roots):
        return [work]
    spent = torch.cumsum(WIDTHS * width + forest.position + 1.0, 0)
    at = int(roots[(spent[roots - 1] - spent[-1] / 2).abs().argmin()])
    return [
        Work(trees(forest, 0, at), work.origin, work.offset),
        Work(trees(forest, at, len(forest)), work.origin, work.offset + at),
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

"""Layouts: how one Megatron parameter is cut from Hugging Face tensors, under any number of shards.

A layout answers one question: which pieces of which tensors, in which order, make up the shard that rank r of
n holds? Loading reads these pieces and joins them; exporting puts them back where they came from. Both follow
from the same list, so a round trip is exact by construction, and a new family states names and no code.

    Whole      the same on every rank: norms, routers
    OutputCut  cut along the output dimension: up-projections, the head
    InputCut   cut along the input dimension: down-projections
    Gated      gate and up, joined rank by rank: [gate_0; up_0], [gate_1; up_1], …
    Halves     the same, where one tensor holds gate above up
    Grouped    query, key and value, interleaved by key-value groups, then cut into equal intervals
    Joint      the same, where one tensor holds query above key above value
    Stacked    all experts in one tensor, transposed: each expert is a shard

Embeddings are `OutputCut` with `vocabulary=True`: Megatron's vocabulary is padded to a multiple of the ranks, and
what lies beyond the real one is zero when loaded and dropped when exported.

`Grouped` shards are intervals of the interleaved rows, so with more ranks than groups a shard may begin within
a head: Megatron gathers the activations there, and pieces need no special case.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """`start` to `stop` of a Hugging Face tensor along `dim`; an empty name is padding."""

    name: str
    dim: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of the model that a layout depends on, besides the parameter's own shape."""

    heads: int
    groups: int
    head_dim: int
    vocabulary: int


class ParameterLayout(ABC):
    """A way to cut a parameter; subclasses are frozen dataclasses, whose string fields are the tensors' names."""

    precise: bool = False
    """Stays in its own precision on export, whatever the others are converted to."""

    stacked: bool = False
    """True where experts are shards of one tensor, and not each a tensor of its own."""

    def filed(self, local: Shape) -> Shape:
        """Return the shape of a shard as the files have it."""
        return local

    def outward(self, shard: Tensor) -> Tensor:
        """Return a shard as the files have it."""
        return shard

    def inward(self, part: Tensor) -> Tensor:
        """Return the shard, as Megatron has it, from its part of the files."""
        return part

    def names(self) -> tuple[str, ...]:
        """The Hugging Face tensors that it is cut from, with `{layer}` and `{expert}` to fill in."""
        return tuple(value for value in vars(self).values() if isinstance(value, str))

    @abstractmethod
    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """List the pieces of each of `count` shards of shape `local`, in order; they lie along `dim` of the shard."""


@dataclass(frozen=True)
class Whole(ParameterLayout):
    """A parameter that is the same on every rank."""

    name: str
    precise: bool = False

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        return [[Piece(self.name, 0, 0, local[0])] for _ in range(count)]


@dataclass(frozen=True)
class OutputCut(ParameterLayout):
    """Cut along the output dimension."""

    name: str
    vocabulary: bool = False

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        size = local[0]
        real = sizes.vocabulary if self.vocabulary else size * count
        shards = []
        for start in range(0, size * count, size):
            stop = min(start + size, max(real, start))
            pieces = [Piece(self.name, 0, start, stop)] if stop > start else []
            if stop < start + size:
                pieces.append(Piece("", 0, stop, start + size))
            shards.append(pieces)
        return shards


@dataclass(frozen=True)
class InputCut(ParameterLayout):
    """Cut along the input dimension."""

    name: str

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        size = local[1]
        return [[Piece(self.name, 1, rank * size, (rank + 1) * size)] for rank in range(count)]


@dataclass(frozen=True)
class Gated(ParameterLayout):
    """Gate and up-projection, joined rank by rank."""

    gate: str
    up: str

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        size = local[0] // 2
        return [
            [Piece(name, 0, rank * size, (rank + 1) * size) for name in (self.gate, self.up)] for rank in range(count)
        ]


@dataclass(frozen=True)
class Halves(ParameterLayout):
    """Gate above up in one tensor."""

    name: str

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        size = local[0] // 2
        return [
            [Piece(self.name, 0, start, start + size) for start in (rank * size, (count + rank) * size)]
            for rank in range(count)
        ]


@dataclass(frozen=True)
class Grouped(ParameterLayout):
    """Query, key and value: for each key-value group its queries, its key, its value."""

    query: str
    key: str
    value: str

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        return _grouped(((self.query, 0), (self.key, 0), (self.value, 0)), local[0], count, sizes)


@dataclass(frozen=True)
class Joint(ParameterLayout):
    """Query above key above value in one tensor."""

    name: str

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`."""
        key = sizes.heads * sizes.head_dim
        return _grouped(
            ((self.name, 0), (self.name, key), (self.name, key + sizes.groups * sizes.head_dim)), local[0], count, sizes
        )


@dataclass(frozen=True)
class Stacked(ParameterLayout):
    """All experts in one tensor, [experts, inputs, outputs] or [experts, outputs].

    Attributes:
        name: the tensor.
        by_turns: outputs are gate, up, gate, up, …, and not all gates before all ups.
    """

    name: str
    by_turns: bool = False
    stacked = True

    def shards(self, local: Shape, count: int, sizes: ModelSizes) -> list[list[Piece]]:
        """See `ParameterLayout`; `local` is as the files have it."""
        return [[Piece(self.name, 0, expert, expert + 1)] for expert in range(count)]

    def filed(self, local: Shape) -> Shape:
        """See `ParameterLayout`."""
        return (1, *reversed(local))

    def outward(self, shard: Tensor) -> Tensor:
        """See `ParameterLayout`."""
        if self.by_turns:
            shard = shard.reshape(2, -1, *shard.shape[1:]).transpose(0, 1).flatten(0, 1)
        return (shard.t() if shard.dim() == 2 else shard)[None]

    def inward(self, part: Tensor) -> Tensor:
        """See `ParameterLayout`."""
        shard = part[0].t() if part.dim() == 3 else part[0]
        if self.by_turns:
            shard = shard.reshape(-1, 2, *shard.shape[1:]).transpose(0, 1).flatten(0, 1)
        return shard


def _grouped(parts: Sequence[tuple[str, int]], size: int, count: int, sizes: ModelSizes) -> list[list[Piece]]:
    """Query, key and value, each a tensor and where it begins there, interleaved by groups and cut into `count`."""
    per_group = sizes.heads // sizes.groups
    order = []
    for group in range(sizes.groups):
        for (name, begin), heads in zip(parts, (per_group, 1, 1), strict=True):
            start = begin + group * heads * sizes.head_dim
            order.append(Piece(name, 0, start, start + heads * sizes.head_dim))
    if sum(map(len, order)) != size * count:
        raise InvalidInput(f"{parts[0][0]} and its like have {sum(map(len, order))} rows, not {count} x {size}")
    return [list(_interval(order, rank * size, (rank + 1) * size)) for rank in range(count)]


def _interval(order: list[Piece], start: int, stop: int) -> Iterator[Piece]:
    at = 0
    for piece in order:
        first, last = max(start - at, 0), min(stop - at, len(piece))
        if first < last:
            yield dataclasses.replace(piece, start=piece.start + first, stop=piece.start + last)
        at += len(piece)


def whole_shapes(shards: list[list[Piece]], local: Shape) -> dict[str, Shape]:
    """The shapes of the Hugging Face tensors that a parameter's shards cover, in the order of their pieces."""
    shapes: dict[str, Shape] = {}
    for piece in (piece for pieces in shards for piece in pieces if piece.name):
        reach = max(piece.stop, shapes[piece.name][piece.dim] if piece.name in shapes else 0)
        shapes[piece.name] = (*local[: piece.dim], reach, *local[piece.dim + 1 :])
    return shapes

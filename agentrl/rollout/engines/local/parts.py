"""Keys and values that decoding attention reads in one product: each row's own, or those that rows have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DECODE_ROWS = 4
"""Query rows for each key-value head of a decoding token, at least."""
SHARED_ROWS = 16
"""Query rows of decoding tokens that are multiplied with one row's keys together are a multiple of this."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Decoding rows whose first `length` keys and values are the same, so that they are read once, from the first."""

    rows: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Own:
    """Keys [start, end) of some decoding rows, each in its own row of the arena."""

    rows: Tensor | slice
    start: int
    end: int

    def take(self, of_RhGx: Tensor) -> Tensor:
        """The part's rows of something."""
        return of_RhGx[self.rows]

    def put(self, taken_nhGx: Tensor, into_RhGx: Tensor) -> None:
        """Write back what `take` took, after a product."""
        into_RhGx[self.rows] = taken_nhGx

    def product(self, left: Tensor, kv_Rhxy: Tensor) -> Tensor:
        """Multiply what was taken by the keys or values that belong to it."""
        rows = left.shape[-2]
        padded = torch.nn.functional.pad(left, (0, 0, 0, -rows % DECODE_ROWS))
        return torch.matmul(padded, kv_Rhxy[self.rows])[..., :rows, :]


@dataclass(frozen=True, slots=True)
class Common:
    """Keys [0, end) of groups of decoding rows, each group's in the row of its first member.

    Attributes:
        members_CM: the rows of each group; a group's empty slots repeat its first member.
        rows: all members, once each.
        slots: where they are, in the flattened `members_CM`.
        sources: each group's first member.
    """

    members_CM: Tensor
    rows: Tensor
    slots: Tensor
    sources: tuple[int, ...]
    end: int
    start: int = 0

    def take(self, of_RhGx: Tensor) -> Tensor:
        """The members' rows of something, a group's together as one matrix for each head: (C, heads, M * G, x)."""
        return of_RhGx[self.members_CM].transpose(1, 2).flatten(2, 3)

    def put(self, taken_ChTx: Tensor, into_RhGx: Tensor) -> None:
        """Write back what `take` took, after a product."""
        groups, heads, _, width = taken_ChTx.shape
        placed = taken_ChTx.view(groups, heads, -1, into_RhGx.shape[2], width).transpose(1, 2).flatten(0, 1)
        into_RhGx[self.rows] = placed[self.slots]

    def product(self, left: Tensor, kv_Rhxy: Tensor) -> Tensor:
        """Multiply what was taken by the keys or values that belong to it, which are read in place."""
        out = left.new_empty(*left.shape[:-1], kv_Rhxy.shape[-1])
        for index, source in enumerate(self.sources):
            torch.matmul(left[index], kv_Rhxy[source], out=out[index])
        return out


Part = Own | Common


def parts(
    decoding: Sequence[int], group: int, keys: int, shared: Sequence[Shared], device: torch.device
) -> tuple[Part, ...]:
    """Return what decoding attention reads, in the order of the keys: shared beginnings, then what rows have alone.

    Args:
        decoding: the rows that do; others among them may be read too, which is of no use to anybody.
        group: query heads for each key-value head.
        keys: how far rows are read.
        shared: rows that begin alike.
        device: the arena's.
    """
    starts = dict.fromkeys(decoding, 0)
    for one in shared:
        starts.update(dict.fromkeys(one.rows, one.length))
    lengths = sorted({one.length for one in shared})
    found: list[Part] = [
        _common([one.rows for one in shared if one.length == length], group, length, device) for length in lengths
    ]
    for start in sorted(set(starts.values())):
        own = sorted(row for row, begun in starts.items() if begun == start)
        reach = range(own[0], own[-1] + 1)
        alone = all(starts.get(row, start) == start for row in reach)
        place = slice(reach.start, reach.stop) if alone else torch.tensor(own, device=device)
        found.append(Own(place, start, keys))
    return tuple(found)


def _common(groups: Sequence[tuple[int, ...]], group: int, length: int, device: torch.device) -> Common:
    quantum = SHARED_ROWS // math.gcd(group, SHARED_ROWS)
    slots = -(-max(map(len, groups)) // quantum) * quantum
    members = [[*rows, *[rows[0]] * (slots - len(rows))] for rows in groups]
    taken = [at * slots + slot for at, rows in enumerate(groups) for slot in range(len(rows))]
    return Common(
        members_CM=torch.tensor(members, device=device),
        rows=torch.tensor([row for rows in groups for row in rows], device=device),
        slots=torch.tensor(taken, device=device),
        sources=tuple(rows[0] for rows in groups),
        end=length,
    )

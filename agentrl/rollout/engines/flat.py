"""Attention of a flat step, and the cache that it reads: what a transformers model is given to run on our rows.

transformers hands every layer's keys and values to a `Cache` and its queries to an attention function that it
looks up by name. Ours write into and read from the arena's rows; where each token belongs is in the `Layout`,
which travels as a keyword argument of the model's call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache

from agentrl.rollout.engines.arena import Arena

ATTENTION = "agentrl_flat"
DECODE_ROWS = 4
"""Query rows for each key-value head of a decoding token, at least."""
SHARED_ROWS = 16
"""Query rows of decoding tokens that are multiplied with one row's keys together: a multiple of this."""
BLOCK = 128
"""Keys that are summed over in one product."""


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
        """What was taken, multiplied by the keys or values that belong to it."""
        rows = left.shape[-2]
        padded = torch.nn.functional.pad(left, (0, 0, 0, -rows % DECODE_ROWS))
        return torch.matmul(padded, kv_Rhxy[self.rows])[..., :rows, :]


@dataclass(frozen=True, slots=True)
class Common:
    """Keys [0, end) of companies of decoding rows, each company's in the row of its first member.

    Attributes:
        members_CM: who sits where; a company's empty seats repeat its first member.
        rows: all members, once each.
        seats: where they sit, in the flattened `members_CM`.
        sources: each company's first member.
    """

    members_CM: Tensor
    rows: Tensor
    seats: Tensor
    sources: tuple[int, ...]
    end: int
    start: int = 0

    def take(self, of_RhGx: Tensor) -> Tensor:
        """The members' rows of something, a company's together as one matrix for each head: (C, heads, M * G, x)."""
        return of_RhGx[self.members_CM].transpose(1, 2).flatten(2, 3)

    def put(self, taken_ChTx: Tensor, into_RhGx: Tensor) -> None:
        """Write back what `take` took, after a product."""
        companies, heads, _, width = taken_ChTx.shape
        seated = taken_ChTx.view(companies, heads, -1, into_RhGx.shape[2], width).transpose(1, 2).flatten(0, 1)
        into_RhGx[self.rows] = seated[self.seats]

    def product(self, left: Tensor, kv_Rhxy: Tensor) -> Tensor:
        """What was taken, multiplied by the keys or values that belong to it, which are read in place."""
        out = left.new_empty(*left.shape[:-1], kv_Rhxy.shape[-1])
        for index, source in enumerate(self.sources):
            torch.matmul(left[index], kv_Rhxy[source], out=out[index])
        return out


Part = Own | Common


def parts(
    decoding: Sequence[int], group: int, keys: int, shared: Sequence[Shared], device: torch.device
) -> tuple[Part, ...]:
    """What decoding attention reads, in the order of the keys: shared beginnings first, then what rows have alone.

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


def _common(companies: Sequence[tuple[int, ...]], group: int, length: int, device: torch.device) -> Common:
    quantum = SHARED_ROWS // math.gcd(group, SHARED_ROWS)
    seats = -(-max(map(len, companies)) // quantum) * quantum
    members = [[*rows, *[rows[0]] * (seats - len(rows))] for rows in companies]
    taken = [at * seats + seat for at, rows in enumerate(companies) for seat in range(len(rows))]
    return Common(
        members_CM=torch.tensor(members, device=device),
        rows=torch.tensor([row for rows in companies for row in rows], device=device),
        seats=torch.tensor(taken, device=device),
        sources=tuple(rows[0] for rows in companies),
        end=length,
    )


@dataclass(slots=True)
class Layout:
    """Where a step's tokens lie, as attention needs it."""

    arena: Arena
    write_row_N: Tensor
    position_N: Tensor
    rows: int
    decode_keys: int
    decode_mask_R11K: Tensor | None
    decode_parts: tuple[Part, ...]
    segment_row_S: Tensor | None
    segment_size: int
    segment_keys: int
    segment_mask_S11CK: Tensor | None


class ArenaCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """Writes a step's keys and values into the arena; what attention reads, it takes from there."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layers=[])
        self.layout = layout

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Write a layer's new keys and values, each (1, heads, N, width), to their rows and positions."""
        at = self.layout
        kv = at.arena.kv[layer_idx]
        kv[0][at.write_row_N, :, at.position_N] = key_states[0].transpose(0, 1)
        kv[1][at.write_row_N, :, at.position_N] = value_states[0].transpose(0, 1)
        return key_states, value_states


def _flat_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    assert layout is not None
    q_HNd = query[0]
    heads, total, width = q_HNd.shape
    scale = scaling if scaling is not None else width**-0.5
    keys, values = layout.arena.kv[module.layer_idx]
    out_NHd = q_HNd.new_zeros(total, heads, width)
    rows = layout.rows
    if layout.decode_mask_R11K is not None:
        out_NHd[:rows] = decode(q_HNd[:, :rows] * scale, keys, values, layout)
    if layout.segment_row_S is not None:
        held = layout.segment_row_S.shape[0] * layout.segment_size
        out_NHd[rows : rows + held] = prefill(q_HNd[:, rows : rows + held] * scale, keys, values, layout)
    return out_NHd[None], None


def decode(q_HRd: Tensor, keys: Tensor, values: Tensor, at: Layout) -> Tensor:
    """One query for each of the first rows, against that row; returns shape (rows, heads, width).

    Where rows share a beginning, its keys and values are read once for all of them (arXiv:2402.05099 does so on GPUs).
    The sums are the same to the last bit: a product's row does not depend on how many there are, and what is shared is
    whole blocks of keys, which are summed one after the other either way.
    """
    heads, rows, width = q_HRd.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    q_RhGd = q_HRd.view(kv_heads, group, rows, width).permute(2, 0, 1, 3)
    assert at.decode_mask_R11K is not None
    score_RhGK = q_HRd.new_zeros(rows, kv_heads, group, at.decode_keys)
    for part in at.decode_parts:
        mine = slice(part.start, part.end)
        part.put(part.product(part.take(q_RhGd), keys[..., mine, :].transpose(-1, -2)), score_RhGK[..., mine])
    weight_RhGK = torch.softmax(score_RhGK.add_(at.decode_mask_R11K), -1)
    out_RhGd = q_HRd.new_zeros(rows, kv_heads, group, width)
    for part in at.decode_parts:
        mine = slice(part.start, part.end)
        weight = part.take(weight_RhGK[..., mine])
        part.put(_weigh(weight, values[..., mine, :], part.product, part.take(out_RhGd)), out_RhGd)
    return out_RhGd.reshape(rows, heads, width)


def prefill(q_HTd: Tensor, keys: Tensor, values: Tensor, at: Layout) -> Tensor:
    """Segments of queries, each against its own row; returns shape (tokens, heads, width)."""
    heads, held, width = q_HTd.shape
    kv_heads, size, reach = keys.shape[1], at.segment_size, at.segment_keys
    group, count = heads // kv_heads, held // size
    assert at.segment_row_S is not None
    assert at.segment_mask_S11CK is not None
    q_Sh_GC_d = q_HTd.view(kv_heads, group, count, size, width).permute(2, 0, 1, 3, 4).flatten(2, 3)
    keys_ShKd = keys[:, :, :reach].index_select(0, at.segment_row_S)
    values_ShKd = values[:, :, :reach].index_select(0, at.segment_row_S)
    score = torch.matmul(q_Sh_GC_d, keys_ShKd.transpose(2, 3)).view(count, kv_heads, group, size, reach)
    weight = torch.softmax(score + at.segment_mask_S11CK, -1).flatten(2, 3)
    out = _weigh(weight, values_ShKd).view(count, kv_heads, group, size, width)
    return out.permute(0, 3, 1, 2, 4).reshape(held, heads, width)


def _weigh(
    weight: Tensor,
    values: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    total: Tensor | None = None,
) -> Tensor:
    """Sum values by weight, block by block over the keys: one long product would be split as its length suggests."""
    for start in range(0, values.shape[-2], BLOCK):
        block = product(weight[..., start : start + BLOCK], values[..., start : start + BLOCK, :])
        total = block if total is None else total.add_(block)
    assert total is not None
    return total


AttentionInterface.register(ATTENTION, _flat_attention)

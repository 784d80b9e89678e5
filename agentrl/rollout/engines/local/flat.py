"""Attention of a flat step: runs a transformers model on the engine's own rows.

transformers passes every layer's queries, keys and values to an attention function that it looks up by name. Ours
writes the step's keys and values into the arena's rows and reads whole rows from there; where each token belongs is
in the `StepLayout`, which travels as a keyword argument of the model's call. transformers' own caches are not used, so
a latent that a layer would cache (DeepSeek's) reaches us as the keys and values that it stands for. Given up: the
memory that caching latents saves, and that a sliding window saves, since rows are kept and read whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentrl.common.transformers_index import AttentionInterface
from agentrl.errors import InvalidInput
from agentrl.models.reach import Reach, reach_of, rescale_queries
from agentrl.rollout.engines.local.arena import Arena
from agentrl.rollout.engines.local.parts import Part

ATTENTION = "agentrl_flat"
BLOCK = 128
"""Keys that are summed over in one product."""
LANES = 32
"""Columns that a sink takes in front of the scores: as many as keep theirs where a vector register begins."""


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """The changes of a layer to its scores before they are weights.

    Attributes:
        reach: how far back a query sees; None is all.
        softcap: c, where scores s become c * tanh(s / c) (Gemma 2, arXiv:2408.00118).
        sinks: [heads], the score of a key that every query sees and that has no value (arXiv:2309.17453).
    """

    reach: Reach | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


PLAIN = AttentionScores()


@dataclass(slots=True)
class StepLayout:
    """The positions of a step's tokens, as attention needs them.

    Attributes:
        arena: what is written to and read from.
        write_row_N: each token's row.
        position_N: each token's place in its row.
        rows: how many decoding rows the step begins with.
        decode_keys: how far they are read.
        decode_parts: in which parts.
        segment_row_S: the segments' rows; empty where there are none.
        segment_size: C, the tokens of each.
        segment_keys: how far their rows are read.
        last_N: the last place of its row that each token sees, where that is not its own.
    """

    arena: Arena
    write_row_N: Tensor
    position_N: Tensor
    rows: int = 0
    decode_keys: int = 0
    decode_parts: tuple[Part, ...] = ()
    segment_row_S: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    segment_size: int = 0
    segment_keys: int = 0
    last_N: Tensor | None = None
    _masks: dict[tuple[bool, Reach | None], Tensor] = field(default_factory=dict)

    def decode_mask(self, reach: Reach | None) -> Tensor:
        """Return the mask that is added to the decoding rows' scores: [R, 1, 1, K]."""
        return self._mask(True, self.decode_keys, reach)

    def segment_mask(self, reach: Reach | None) -> Tensor:
        """Return the mask that is added to the segments' scores: [S, 1, 1, C, K]."""
        return self._mask(False, self.segment_keys, reach)

    def _mask(self, decoding: bool, keys: int, reach: Reach | None) -> Tensor:
        reach = None if reach is None or reach.tokens >= keys else reach
        if (decoding, reach) not in self._masks:
            place = last = self.position_N[: self.rows]
            if not decoding:
                held = slice(self.rows, self.rows + len(self.segment_row_S) * self.segment_size)
                place = last = self.position_N[held].view(-1, self.segment_size)
                if self.last_N is not None:
                    last = self.last_N[held].view(-1, self.segment_size)
            key = torch.arange(keys, device=place.device)
            seen = key <= last[..., None]
            if reach is not None:
                seen &= key >= reach.first(place)[..., None]
            zero = torch.zeros((), dtype=self.arena.kv.dtype, device=place.device)
            self._masks[decoding, reach] = zero.where(seen, -torch.inf)[:, None, None]
        return self._masks[decoding, reach]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A layer's shapes in attention: heads, key-value heads, widths of keys and values; its `AttentionScores`."""

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scores: AttentionScores


@dataclass(slots=True)
class Shapes:
    """In place of a `StepLayout`: records what each layer passes to attention, which then computes nothing."""

    layers: dict[int, LayerShape] = field(default_factory=dict)


def _flat_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: StepLayout | Shapes | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if layout is None:
        raise InvalidInput(f"{type(module).__name__} does not pass keyword arguments on to attention")
    q_HNd = query[0]
    heads, total, width = q_HNd.shape
    scores = AttentionScores(reach_of(module, sliding_window), softcap, s_aux)
    out_NHe = q_HNd.new_zeros(total, heads, value.shape[-1])
    if isinstance(layout, Shapes):
        layout.layers[module.layer_idx] = LayerShape(heads, key.shape[1], key.shape[-1], value.shape[-1], scores)
        return out_NHe[None], None
    q_HNd = rescale_queries(module, query, layout.position_N)[0].to(query.dtype)
    kv = layout.arena.kv[layout.arena.slots[module.layer_idx]]
    keys, values = kv[0][..., : key.shape[-1]], kv[1][..., : value.shape[-1]]
    keys[layout.write_row_N, :, layout.position_N] = key[0].transpose(0, 1).to(kv.dtype)
    values[layout.write_row_N, :, layout.position_N] = value[0].transpose(0, 1).to(kv.dtype)
    scale = scaling if scaling is not None else width**-0.5
    rows = layout.rows
    if rows:
        out_NHe[:rows] = decode(q_HNd[:, :rows] * scale, keys, values, layout, scores)
    if held := len(layout.segment_row_S) * layout.segment_size:
        out_NHe[rows : rows + held] = prefill(q_HNd[:, rows : rows + held] * scale, keys, values, layout, scores)
    return out_NHe[None], None


def decode(q_HRd: Tensor, keys: Tensor, values: Tensor, at: StepLayout, scores: AttentionScores = PLAIN) -> Tensor:
    """One query for each of the first rows, against that row; returns shape (rows, heads, width).

    Where rows share a beginning, its keys and values are read once for all of them (arXiv:2402.05099 does so on GPUs).
    The sums are the same to the last bit: a product's row does not depend on how many there are, and what is shared is
    whole blocks of keys, which are summed one after the other either way.
    """
    heads, rows, width = q_HRd.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    q_RhGd = q_HRd.view(kv_heads, group, rows, width).permute(2, 0, 1, 3)
    score_RhGK = q_HRd.new_zeros(rows, kv_heads, group, at.decode_keys)
    for part in at.decode_parts:
        mine = slice(part.start, part.end)
        part.put(part.product(part.take(q_RhGd), keys[..., mine, :].transpose(-1, -2)), score_RhGK[..., mine])
    weight_RhGK = _weights(score_RhGK, at.decode_mask(scores.reach), scores)
    out_RhGd = q_HRd.new_zeros(rows, kv_heads, group, values.shape[-1])
    for part in at.decode_parts:
        mine = slice(part.start, part.end)
        weight = part.take(weight_RhGK[..., mine])
        part.put(_weigh(weight, values[..., mine, :], part.product, part.take(out_RhGd)), out_RhGd)
    return out_RhGd.reshape(rows, heads, -1)


def prefill(q_HTd: Tensor, keys: Tensor, values: Tensor, at: StepLayout, scores: AttentionScores = PLAIN) -> Tensor:
    """Segments of queries, each against its own row; returns shape (tokens, heads, width)."""
    heads, held, width = q_HTd.shape
    kv_heads, size, reach = keys.shape[1], at.segment_size, at.segment_keys
    group, count = heads // kv_heads, held // size
    q_Sh_GC_d = q_HTd.view(kv_heads, group, count, size, width).permute(2, 0, 1, 3, 4).flatten(2, 3)
    keys_ShKd = keys[:, :, :reach].index_select(0, at.segment_row_S)
    values_ShKd = values[:, :, :reach].index_select(0, at.segment_row_S)
    score = torch.matmul(q_Sh_GC_d, keys_ShKd.transpose(2, 3)).view(count, kv_heads, group, size, reach)
    weight = _weights(score, at.segment_mask(scores.reach), scores).flatten(2, 3)
    out = _weigh(weight, values_ShKd).view(count, kv_heads, group, size, -1)
    return out.permute(0, 3, 1, 2, 4).reshape(held, heads, -1)


def _weights(score: Tensor, mask: Tensor, how: AttentionScores) -> Tensor:
    """The weights of values; `score` [rows, kv heads, group, *, K] is used up.

    A sink stands in front of all keys, so that where a key stands does not depend on how many there are.
    """
    if how.softcap is not None:
        score = score.div_(how.softcap).tanh_().mul_(how.softcap)
    score = score.add_(mask)
    if how.sinks is None:
        return torch.softmax(score, -1)
    front = score.new_full((*score.shape[:-1], LANES), -torch.inf)
    front[..., 0] = how.sinks.view(*score.shape[1:3], *[1] * (score.dim() - 4))
    return torch.softmax(torch.cat((front, score), -1), -1)[..., LANES:]


def _weigh(
    weight: Tensor,
    values: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    total: Tensor | None = None,
) -> Tensor:
    """Sum values by weight, block by block over the keys: one long product would be split as its length suggests."""
    first = product(weight[..., :BLOCK], values[..., :BLOCK, :])
    total = first if total is None else total.add_(first)
    for start in range(BLOCK, values.shape[-2], BLOCK):
        total.add_(product(weight[..., start : start + BLOCK], values[..., start : start + BLOCK, :]))
    return total


AttentionInterface.register(ATTENTION, _flat_attention)

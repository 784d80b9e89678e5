"""Attention under the forest rule k <= q < end[k], for transformers' attention interface.

Where a forest has the field `block`, an image's tokens also see those behind them, up to the image's last.

On a GPU it is FlexAttention's (`flex`), which has no backward on a CPU. There queries go in blocks of consecutive
tokens, each against its own keys only: the block's ancestors and the block itself. These keys
are found by the rule (k before the block's first token a, end[k] > a), gathered, and blocks with about as
many keys share one masked call of scaled_dot_product_attention. A pack of many short trees thus costs its
depth and not its square; one block as long as the row is the dense square, and the tests compare the two.
A long row, or tree up to where it branches, needs neither mask nor gather: it has a causal call.

Sliding windows and chunks are counted along the path, by the depth of the first key that a query sees
(`models.reach`); so is Llama 4's attention temperature by position. scaled_dot_product_attention has neither capped
scores (Gemma 2) nor sinks (GPT-OSS): on a CPU their scores are computed explicitly, block by block, which takes more
memory; FlexAttention has both.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentrl.common.transformers_index import AttentionInterface
from agentrl.errors import InvalidInput
from agentrl.models.reach import Reach, reach_of, rescale_queries
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.pictures import last_seen

NAME = "agentrl_forest"
"""The attention's name in a model's configuration (`attn_implementation`)."""

MIN_BLOCK, MAX_BLOCK = 64, 1024
"""Bounds of how many queries share their keys on a CPU.

In between it is about half the mean depth: then less than a third of a block's scores are masked, and the
gathered keys stay below three times the row's own. Measured on two cores: 64 and 128 were best for packs of mean
depth 70, 64 to 256 at 400, 512 and 1024 at 2,000 (where 64 took 2.4 times as long).
"""
CALL = 256
"""Tokens from which a row has a call of its own: shorter ones share blocks, which take fewer calls."""


class AttentionPlan(Protocol):
    """One forest's attention, prepared once and used by every layer."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: [1, heads, T, d].
            key: [1, kv heads, T, d].
            value: [1, kv heads, T, e].
            scale: what products of queries and keys are multiplied with.
            softcap: c, where scores s become c * tanh(s / c) (Gemma 2, arXiv:2408.00118).
            sinks: [heads], the score of a key that every query sees and that has no value (arXiv:2309.17453).

        Returns:
            [1, T, heads, e].
        """

    @property
    def depth(self) -> Tensor:
        """Each token's position along its path: [T]."""

    def within(self, reach: Reach | None) -> AttentionPlan:
        """The plan under which a query sees no further along its path than `reach`; None: all of it."""


@dataclass(slots=True)
class _Bucket:
    """Blocks with about as many keys: indices of queries [N, B] and of keys [N, K], what is visible [N, 1, B, K]."""

    queries: Tensor
    keys: Tensor
    mask: Tensor

    def bias(self, dtype: torch.dtype) -> Tensor:
        """The mask as a bias on scores, converted once for all layers."""
        if self.mask.dtype != dtype:
            visible = self.mask if self.mask.dtype == torch.bool else self.mask == 0
            self.mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
        return self.mask


class BlockPlan:
    """The plan for a CPU."""

    def __init__(self, forest: Forest, block: int | None = None) -> None:
        last = last_seen(forest.fields)
        self.begin(forest.end.numpy(), forest.position.numpy(), block, last=None if last is None else last.numpy())

    def begin(
        self,
        end: np.ndarray[Any, Any],
        position: np.ndarray[Any, Any],
        block: int | None = None,
        queries: np.ndarray[Any, Any] | None = None,
        last: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Take a row's `end` and depths, and find every block's keys.

        Args:
            end: of the whole row.
            position: each token's depth.
            block: how many queries share their keys; None chooses by depth.
            queries: the tokens that attend, in runs of `block`; None is all of them.
            last: the last key that each token sees, where that is not itself.
        """
        assert last is None or queries is None, "images that see both ways are computed whole"
        self.end, self.position, self.queries, self.last = end, position, queries, last
        self.narrower = dict[Reach | None, BlockPlan]()
        self.block = block or block_for(float(position.mean()))
        self.rows = causal_rows(end) if block is None and queries is None and last is None else []
        if not self.rows:
            return self.prepare(self.block)
        called = np.concatenate([np.arange(start, start + count * length) for start, count, length in self.rows])
        rest = np.delete(np.arange(len(end)), called)
        if rest.size:
            fitting = max(MIN_BLOCK, rest.size // len(stretches(rest)))
            block = min(fitting, block_for(float(position[rest].mean())))
        self.prepare(block or self.block, rest, called)

    @property
    def depth(self) -> Tensor:
        return torch.from_numpy(self.position)

    def within(self, reach: Reach | None) -> BlockPlan:
        return self if reach is None or reach.tokens > self.position.max() else self._in_blocks(reach)

    def _in_blocks(self, reach: Reach | None) -> BlockPlan:
        """The plan without causal calls, whose queries see all that is above them within `reach`."""
        if reach not in self.narrower:
            narrow = self.narrower[reach] = copy.copy(self)
            narrow.rows = []
            most = self.block if reach is None or self.queries is not None else block_for(reach.tokens)
            narrow.prepare(min(self.block, most), reach=reach)
        return self.narrower[reach]

    def prepare(
        self,
        block: int,
        tokens: np.ndarray[Any, Any] | None = None,
        called: np.ndarray[Any, Any] | None = None,
        reach: Reach | None = None,
    ) -> None:
        """Find each block's keys.

        Args:
            block: how many queries share their keys.
            tokens: those that attend in blocks; None is all that attend.
            called: the others, in the order of `self.rows`.
            reach: how far along its path a query sees, by `self.position`.
        """
        row, asked = len(self.end), np.arange(len(self.end)) if self.queries is None else self.queries
        parts = stretches(asked if tokens is None else tokens)
        block = min(block, max(1, *(part.size for part in parts)))
        blocks = [part[at : at + block] for part in parts for at in range(0, part.size, block)]
        beyond = np.arange(row, row + block)  # a block that is not full has what is behind its tokens
        end, depth = np.append(self.end, beyond + 1), np.append(self.position, np.zeros(block, dtype=np.int64))
        first = None if reach is None else reach.first(depth)
        self.until = None if self.last is None else np.append(self.last, beyond) + 1
        keys = [_keys(end, int(part[0]), int(part[0]) + block, depth, first, self.until) for part in blocks]
        order = sorted(range(len(blocks)), key=lambda i: keys[i].size)
        place = np.zeros(row + block, dtype=np.int64)  # of a token among those that attend
        place[asked] = np.arange(asked.size)
        outputs, self.buckets = [] if called is None else [called], list[_Bucket]()
        while order:
            smallest = keys[order[0]].size
            size = next((i for i, b in enumerate(order) if keys[b].size > smallest + max(block, smallest // 4)), None)
            query = np.stack([blocks[b][0] + np.arange(block) for b in order[:size]])
            self.buckets.append(self._bucket(end, query, place, [keys[b] for b in order[:size]], depth, first))
            outputs += [np.pad(blocks[b], (0, block - blocks[b].size), constant_values=-1) for b in order[:size]]
            order = order[size:] if size else []
        output = np.concatenate(outputs)  # the tokens that calls and blocks compute, one behind the other
        kept = np.flatnonzero(output >= 0)
        self.order = torch.from_numpy(kept[np.argsort(place[output[kept]])])

    def _bucket(
        self,
        end: np.ndarray[Any, Any],
        query: np.ndarray[Any, Any],
        place: np.ndarray[Any, Any],
        keys: list[np.ndarray[Any, Any]],
        depth: np.ndarray[Any, Any],
        first: np.ndarray[Any, Any] | None,
    ) -> _Bucket:
        key = np.full((len(keys), max(each.size for each in keys)), end.size, dtype=np.int64)  # visible to no query
        for row, each in enumerate(keys):
            key[row, : each.size] = each
        until = np.append(end, 0)[key]
        mask = (key[:, None, :] <= query[:, :, None]) & (query[:, :, None] < until[:, None, :])
        if self.until is not None:
            mask |= (key[:, None, :] > query[:, :, None]) & (key[:, None, :] < self.until[query][:, :, None])
        if first is not None:
            mask &= np.append(depth, 0)[key][:, None, :] >= first[query][:, :, None]
        key = np.minimum(key, len(self.end) - 1)  # queries beyond see only themselves, whatever is there
        return _Bucket(torch.from_numpy(place[query]), torch.from_numpy(key), torch.from_numpy(mask[:, None]))

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        attend = F.scaled_dot_product_attention
        if softcap is not None or sinks is not None:
            if self.rows:
                return self._in_blocks(None)(query, key, value, scale, softcap, sinks)
            attend = functools.partial(_explicit_attention, softcap=softcap, sinks=sinks)
        gqa = query.shape[1] != key.shape[1]
        outputs = _attend_rows(self.rows, query, key, value, scale) if self.rows else []
        for bucket in self.buckets:
            index = bucket.queries, bucket.keys, bucket.keys
            q, k, v = (  # [N, heads, B or K, d]
                each[0].transpose(0, 1).index_select(0, at.flatten()).view(*at.shape, *each.shape[1::2]).transpose(1, 2)
                for each, at in zip((query, key, value), index, strict=True)
            )
            out = attend(q, k, v, attn_mask=bucket.bias(query.dtype), scale=scale, enable_gqa=gqa)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        joined = torch.cat(outputs)
        return (joined.index_select(0, self.order) if self.buckets else joined)[None]


def block_for(depth: float) -> int:
    """Return how many queries share their keys in a row of that mean depth: see MIN_BLOCK."""
    return min(MAX_BLOCK, max(MIN_BLOCK, 1 << round(math.log2(max(depth, 1.0) / 2 + 1))))


def causal_rows(end: np.ndarray[Any, Any]) -> list[tuple[int, int, int]]:
    """Return the parts of a forest that are computed without a mask: rows, and trees up to where they branch.

    Each is its first token, how many of one length follow each other, and their length. Where they are all of the
    forest, they are long on average; where they aren't, each of them is (`CALL`).
    """
    rows, start = list[tuple[int, int, int]](), 0
    while start < len(end):
        stop = int(end[start])
        branches = np.flatnonzero(end[start:stop] < stop)
        length = int(branches[0]) if branches.size else stop - start
        first, count, each = rows[-1] if rows else (0, 0, 0)
        if each == length and first + count * each == start:
            rows[-1] = first, count + 1, each
        else:
            rows.append((start, 1, length))
        start = stop
    everything = sum(count * length for _, count, length in rows) == len(end)
    if everything and len(end) >= CALL * len(rows):
        return rows
    return [row for row in rows if row[2] >= CALL]


def stretches(tokens: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Cut tokens where they don't follow each other."""
    return np.split(tokens, np.flatnonzero(np.diff(tokens) != 1) + 1)


def _attend_rows(
    rows: Sequence[tuple[int, int, int]], query: Tensor, key: Tensor, value: Tensor, scale: float
) -> list[Tensor]:
    """Attend within rows: [count * length, heads, e] of each; see `causal_rows` and `AttentionPlan`."""
    cuts = [0, *(place for start, count, length in rows for place in (start, start + count * length)), query.shape[2]]
    # Not slices: each of them would have a gradient of all tokens.
    parts = (torch.split(each[0], np.diff(cuts).tolist(), 1)[1::2] for each in (query, key, value))
    outputs = []
    for (_, count, length), *own in zip(rows, *parts, strict=True):
        q, k, v = (part.unflatten(1, (count, length)).transpose(0, 1) for part in own)
        gqa = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return outputs


def _keys(
    end: np.ndarray[Any, Any],
    start: int,
    stop: int,
    depth: np.ndarray[Any, Any],
    first: np.ndarray[Any, Any] | None,
    until: np.ndarray[Any, Any] | None,
) -> np.ndarray[Any, Any]:
    """The ancestors of token `start`, the block's own tokens, and the rest of an image: all that its queries can see.

    An ancestor is out of reach where it is so for the shallowest of the block's tokens that descend from it.

    Args:
        end: of the whole row and its padding.
        start: the block's first token.
        stop: one past its last.
        depth: of the whole row and its padding.
        first: the depth of the first key that each token sees; None is the root's.
        until: one past the last key that each token sees; None is past itself.
    """
    behind = stop if until is None else int(until[stop - 1])
    ancestors = np.flatnonzero(end[:start] > start)
    if first is not None:
        furthest = np.minimum.accumulate(first[start:stop])[np.minimum(end[ancestors], stop) - start - 1]
        ancestors = ancestors[depth[ancestors] >= furthest]
    return np.concatenate((ancestors, np.arange(start, behind)))


def _explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor,
    scale: float,
    enable_gqa: bool,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`scaled_dot_product_attention` of [N, heads, B, d] with capped scores and sinks: see `AttentionPlan`."""
    blocks, heads, queries, _ = query.shape
    grouped = query.reshape(blocks, key.shape[1], -1, query.shape[-1])  # heads of a group share keys
    score = (grouped @ key.transpose(-1, -2)).view(blocks, heads, queries, -1).float() * scale
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    score = score + attn_mask
    if sinks is not None:
        score = torch.cat((score, sinks.float()[:, None, None].expand(blocks, heads, queries, 1)), -1)
    weight = torch.softmax(score, -1)[..., : key.shape[2]].to(value.dtype)
    return (weight.reshape(*grouped.shape[:3], -1) @ value).view(blocks, heads, queries, -1)


def forest_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    forest_plan: AttentionPlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend within a forest; transformers calls it in each layer and passes `forest_plan` from the model's arguments.

    `s_aux` are a layer's sinks.
    """
    if forest_plan is None:
        raise InvalidInput(f"{type(module).__name__} does not pass keyword arguments on to attention")
    query = rescale_queries(module, query, forest_plan.depth)
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, rotary tables leave them in float32
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return forest_plan.within(reach_of(module, sliding_window))(query, key, value, scale, softcap, s_aux), None


AttentionInterface.register(NAME, forest_attention)

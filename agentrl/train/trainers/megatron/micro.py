"""A micro-batch: one forest on one rank: padded, sharded and with its table.

Padding has three reasons. Context and sequence parallelism need divisible lengths; GPU kernels need few different
ones; the `allgather` dispatcher needs the same length on all ranks that share experts. Padding tokens are trees of
their own, which no other token attends to; routers get a mask of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.models.vision import PlacedFrames
from agentrl.train.forest import pictures
from agentrl.train.forest.forest import Forest, Rows
from agentrl.train.trainers.flex import FLEX_BLOCK
from agentrl.train.trainers.megatron.layout import ParallelLayout
from agentrl.train.trainers.megatron.table import TokenShard, block_size, deal, padded_tokens, table
from agentrl.train.trainers.ranks.balance import ForestWork


@dataclass(slots=True)
class Micro:
    """A micro-batch on one rank.

    Attributes:
        work: what it was made from.
        token_ids: [1, L], those that this context-parallel rank holds.
        table: see `table`.
        padding: [1, L], true at padding tokens; None without any.
        rows: the pairs whose predictor is held here; `predictor` counts the tokens held, `target` the forest's. Of a
            score model, `predictor` is the target among the tokens held.
        share: which tokens are held.
        images: the frames of the tokens held, if any.
        routed_experts: by layer number, the experts [tokens, topk] that were chosen; see `moe`.
    """

    work: ForestWork
    token_ids: Tensor
    table: Tensor
    padding: Tensor | None
    rows: Rows
    share: TokenShard
    images: PlacedFrames | None = None
    routed_experts: dict[int, Tensor] = field(default_factory=dict)


def lengths(
    plan: Sequence[Sequence[int]], layout: ParallelLayout, *, gpu: bool, together: bool, updates: bool = False
) -> list[list[int]]:
    """The padded length of each rank's micro-batches.

    Args:
        plan: the tokens of each data-parallel rank's micro-batches.
        layout: context and tensor parallelism decide what must divide.
        gpu: pad to one of a few lengths, for which kernels are compiled.
        together: pad micro-batches that run at the same time to the same length.
        updates: batches are divided (`Forest.updates`): which micro-batches run at the same time changes by epochs.

    Interleaved stages must know lengths beforehand: with two of them, a length and its tensor would be sent between the
    same two ranks in both directions at once. So there all micro-batches are padded to the longest.
    """
    padded = [[_pad(tokens, layout, gpu) for tokens in rank] for rank in plan]
    if layout.interleave > 1 or (together and updates):
        longest = max(length for rank in padded for length in rank)
        return [[longest] * len(rank) for rank in padded]
    if together:
        padded = [list(map(max, zip(*padded, strict=True)))] * len(padded)
    return padded


def _pad(tokens: int, layout: ParallelLayout, gpu: bool) -> int:
    if gpu:
        from agentrl.train.trainers.torch_trainer.batch import padded_length

        tokens = padded_length(tokens)
    block = block_size(tokens, layout.context, FLEX_BLOCK if gpu else None)
    return padded_tokens(tokens, layout.context, layout.tensor if layout.sequence else 1, block)


def micro_batch(
    work: ForestWork, length: int, layout: ParallelLayout, rank: int, device: torch.device, *, at_target: bool = False
) -> Micro:
    """Make a rank's micro-batch.

    Args:
        work: what to compute.
        length: what to pad it to.
        layout: how it is shared.
        rank: the context-parallel rank.
        device: where it is computed.
        at_target: rows are computed from the states of their targets, as scores are, and not of their predictors.
    """
    tokens = len(work.forest)
    forest = work.forest.padded(length)
    block = block_size(tokens, layout.context, FLEX_BLOCK if device.type == "cuda" else None)
    while length % (block * layout.context):
        block //= 2
    share = deal(forest, layout.context, rank, block)
    place = torch.full((length,), -1)
    place[share.mine] = torch.arange(share.length)
    rows = work.forest.rows()
    if at_target:
        rows.predictor = rows.target
    kept = place[rows.predictor] >= 0
    rows = rows.take(kept)
    rows.predictor = place[rows.predictor]
    padding = (share.mine >= tokens)[None]
    return Micro(
        work,
        forest.token_ids[share.mine][None].to(device),
        table(forest, share).to(device),
        padding.to(device) if bool(padding.any()) else None,
        rows.to(device),
        share,
        _images(forest, share, device),
    )


def _images(forest: Forest, share: TokenShard, device: torch.device) -> PlacedFrames | None:
    found = pictures.images_of(forest.fields)
    if found is None:
        return None
    held = (column[share.mine].to(device) for column in found[1:])
    return PlacedFrames(found.values.to(device), *held)

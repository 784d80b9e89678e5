"""A forest's attention table, one integer tensor; and its partition over context-parallel ranks.

Megatron has one argument that reaches every attention layer, goes through pipeline schedules untouched, is
saved and restored by activation recomputation, and is not read on the way: `attention_mask`. A global
variable would belong to the wrong micro-batch under 1F1B. So position, `end` and the partition are passed there, as a
table [3, T] of one row each:

    position   of the tokens that this rank holds, in their order; zeros behind them
    end        of all tokens, by their global index
    held       the global indices that each context-parallel rank holds, rank after rank

Without context parallelism a rank holds all tokens in order. With it, the row is split into blocks of consecutive
tokens, and every rank gets as many blocks and about the same cost: most expensive first, each to the cheapest rank that
is not full. Queries stay local; keys and values are all-gathered, and the rank that holds a token computes the
(predictor, target) pairs that it predicts.

What was given up: Megatron's own zigzag, which balances causal rows and knows nothing of trees, and ring
attention, which would save the memory of gathered keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.pictures import AXES, BLOCK

POSITION, END, HELD = range(3)
"""The rows of the table."""

BLOCKS_EACH = 4
"""The fewest blocks that a context-parallel rank should get, so that costs can be balanced."""

SMALLEST, LARGEST = 8, 128
"""Bounds of a block's tokens on a CPU; a GPU always takes FlexAttention's 128."""


@dataclass(frozen=True, slots=True)
class TokenShard:
    """The tokens of a padded forest that a context-parallel rank holds.

    Attributes:
        length: tokens that each rank holds.
        block: consecutive tokens that stay together.
        held: [T] global indices, rank after rank.
        rank: of this shard.
    """

    length: int
    block: int
    held: Tensor
    rank: int

    @property
    def mine(self) -> Tensor:
        """[length] global indices, ascending in each block."""
        return self.held[self.rank * self.length : (self.rank + 1) * self.length]


def block_size(tokens: int, context: int, fixed: int | None = None) -> int:
    """Tokens of a block: `fixed`, or a power of two that leaves each rank a few blocks to balance."""
    if fixed is not None:
        return fixed
    wanted = max(1, tokens // (context * BLOCKS_EACH))
    return min(LARGEST, max(SMALLEST, 1 << int(math.log2(wanted))))


def padded_tokens(tokens: int, context: int, tensor: int, block: int) -> int:
    """The least length from `tokens` on that blocks divide evenly among ranks, and tensor ranks within them."""
    unit = math.lcm(block * context, tensor * context) if context > 1 else tensor
    return -(-tokens // unit) * unit


def deal(forest: Forest, context: int, rank: int, block: int) -> TokenShard:
    """Assign a padded forest's blocks to `context` ranks, as many to each and of about the same cost."""
    tokens = len(forest)
    if context == 1:
        return TokenShard(tokens, block, torch.arange(tokens), 0)
    count = tokens // block
    cost = (forest.position.cpu() + 1).view(count, block).sum(1).tolist()
    free, load = [count // context] * context, [0.0] * context
    assigned: list[list[int]] = [[] for _ in range(context)]
    for index in sorted(range(count), key=lambda b: (-cost[b], b)):
        to = min((r for r in range(context) if free[r]), key=lambda r: (load[r], r))
        assigned[to].append(index)
        free[to] -= 1
        load[to] += cost[index]
    starts = torch.tensor([b * block for blocks in assigned for b in sorted(blocks)])
    held = (starts[:, None] + torch.arange(block)).flatten()
    return TokenShard(tokens // context, block, held, rank)


def table(forest: Forest, share: TokenShard) -> Tensor:
    """The table [3, T], int64, of a padded forest for a rank's shard.

    Raises:
        InvalidInput: the forest's images have positions with three axes, or tokens that see each other.
    """
    if AXES in forest.fields or BLOCK in forest.fields:
        raise InvalidInput(
            "the sessions' images have positions with three axes, or tokens that see each other, and trainer=megatron "
            "has no place for either: use trainer=torch or trainer=fsdp"
        )
    rows = torch.zeros(3, len(forest), dtype=torch.int64)
    rows[POSITION, : share.length] = forest.position.cpu()[share.mine]
    rows[END] = forest.end.cpu()
    rows[HELD] = share.held
    return rows

"""The forest rule for FlexAttention, on a GPU: it skips every block that no pair of tokens in it can see.

The block mask comes from per-block extrema of `end` and of depths, never from the dense square.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from agentrl.errors import InvalidInput
from agentrl.models.reach import Reach
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.pictures import last_seen

COMPILED_SHAPES = 256
"""The most shapes that are compiled: about 40 padded lengths, each with and without windows and other variants.
Beyond torch's own limit of 8 it would run uncompiled, and dense."""

FLEX_BLOCK = 128
"""FlexAttention's sparse block; rows are padded to lengths that it divides."""


class FlexPlan:
    """The plan for a GPU; the forest must be padded to a multiple of FLEX_BLOCK."""

    def __init__(self, forest: Forest, *, compiled: bool = True) -> None:
        self.begin(forest.end, forest.position, compiled=compiled, last=last_seen(forest.fields))

    def begin(
        self,
        end: Tensor,
        position: Tensor,
        queries: Tensor | None = None,
        *,
        compiled: bool = True,
        last: Tensor | None = None,
    ) -> None:
        """Take a row's `end` and depths.

        `queries` are the query tokens, in whole blocks, where not all tokens are; `last` is the last key that each
        token sees, where that is not itself.
        """
        self.end, self.position, self.queries, self.last = end, position, queries, last
        self.longest, self.narrower = int(position.max()) + 1, dict[Reach, FlexPlan]()
        self.mask = flex_mask(end, position, queries=queries, last=last)
        self.attend = compiled_flex_attention() if compiled else flex_attention

    @property
    def depth(self) -> Tensor:
        return self.position

    def within(self, reach: Reach | None) -> FlexPlan:
        if reach is None or reach.tokens >= self.longest:
            return self
        if reach not in self.narrower:
            narrow = self.narrower[reach] = copy.copy(self)
            narrow.mask = flex_mask(self.end, self.position, queries=self.queries, reach=reach, last=self.last)
        return self.narrower[reach]

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        options: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
        if softcap is not None:
            options["score_mod"] = functools.partial(_cap, softcap=softcap)
        if sinks is None:
            return cast(Tensor, self.attend(query, key, value, block_mask=self.mask, **options)).transpose(1, 2)
        out, aux = self.attend(query, key, value, block_mask=self.mask, **options, **_WITH_LSE)
        lse = aux if isinstance(aux, Tensor) else aux.lse  # [1, heads, T], of the keys without the sink
        return cast(Tensor, out * torch.sigmoid(lse - sinks[:, None])[..., None].to(out.dtype)).transpose(1, 2)


Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of a batch row, a head, a query and a key: whether the query sees the key."""
_WITH_LSE: dict[str, Any] = {"return_lse": True}
if hasattr(flex, "AuxRequest"):  # torch 2.9, which deprecates `return_lse`
    _WITH_LSE = {"return_aux": flex.AuxRequest(lse=True)}


def _cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, *, softcap: float) -> Tensor:
    return softcap * torch.tanh(score / softcap)


def _within_image(ahead: Tensor) -> Rule:
    """The rule that a token sees the later ones of its image, the last of which is in `ahead`: [T]."""

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k > q) & (k <= ahead[q])

    return visible


def _near(depth: Tensor, first: Tensor) -> Rule:
    """The rule that a query sees keys whose depth, [T], is at least its own of `first`: [Q]."""

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return depth[k] >= first[q]

    return visible


def flex_mask(
    end: Tensor,
    position: Tensor,
    block: int = FLEX_BLOCK,
    queries: Tensor | None = None,
    reach: Reach | None = None,
    last: Tensor | None = None,
) -> BlockMask:
    """FlexAttention's block mask, from per-block extrema of `end` and never from the dense square.

    A key block can be seen from a query block where some key's `end` lies beyond the first query; it is
    seen whole where it lies before the query block and every key's `end` lies beyond the last query. With a
    reach it must also have a key near enough to some query, or all of them to all. Where images' tokens see each other
    both ways, it can also be seen where it begins within an image of the query block's.

    Args:
        end: of the whole row.
        position: the tokens' depths.
        block: the sparse block.
        queries: the query tokens, in whole blocks of the row; None is all of them.
        reach: how far along its path a query sees; None is all of it.
        last: the last key that each token sees; None is itself. Only where all tokens are queries.
    """
    length = len(end)
    if length % block:
        raise InvalidInput(f"length {length} is not a multiple of the block {block}; pad the forest first")
    end, count = end.to(torch.int32), length // block
    index = torch.arange(length, device=end.device, dtype=torch.int32)
    held = index if queries is None else queries.to(torch.int32)
    blocks = end.view(count, block)
    keys, first_query = index[::block], held[::block, None]
    some = (keys <= first_query) & (blocks.amax(1) > first_query)
    whole = (keys < first_query) & (blocks.amin(1) >= first_query + block)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end[k])

    def visible_from_held(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= held[q]) & (held[q] < end[k])

    rule: Rule = visible if queries is None else visible_from_held
    if last is not None:
        assert queries is None, "images that see both ways are computed whole"
        ahead = last.to(torch.int32)
        some |= (keys > first_query) & (keys <= ahead.view(count, block).amax(1)[:, None])
        rule = flex.or_masks(rule, _within_image(ahead))
    if reach is not None:
        depth = position.to(torch.int32)
        query_depth = depth if queries is None else depth[queries]
        shallow, deep = query_depth.view(-1, block).amin(1)[:, None], query_depth.view(-1, block).amax(1)[:, None]
        some &= depth.view(count, block).amax(1) >= reach.first(shallow)
        whole &= depth.view(count, block).amin(1) >= reach.first(deep)
        rule = flex.and_masks(rule, _near(depth, reach.first(query_depth)))
    partly_n, partly = _order(some & ~whole)
    whole_n, fully = _order(whole)
    return BlockMask.from_kv_blocks(
        partly_n, partly, whole_n, fully, BLOCK_SIZE=block, mask_mod=rule, seq_lengths=(len(held), length)
    )


def _order(dense: Tensor) -> tuple[Tensor, Tensor]:
    """The number of blocks that each query block sees, and their numbers first in each row: [1, 1, N], [1, 1, N, K]."""
    indices = torch.argsort(dense.int(), dim=-1, descending=True, stable=True)
    return dense.sum(-1).int()[None, None], indices.int()[None, None].contiguous()


_COMPILED: list[Any] = []


def compiled_flex_attention() -> Any:
    """FlexAttention, compiled once for every padded length."""
    if not _COMPILED:
        limits: Any = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, COMPILED_SHAPES)
        _COMPILED.append(torch.compile(flex_attention, dynamic=False))
    return _COMPILED[0]

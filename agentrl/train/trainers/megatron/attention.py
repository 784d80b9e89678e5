"""The core attention that Megatron's layer specs are built with: k <= q < end[k], on every kind of parallelism.

It takes queries, keys and values that are already rotated, [s, b, heads, d] as Megatron lays them out, and the
table of `agentrl.train.trainers.megatron.table` in the place of the attention mask. Tensor parallelism gives it
fewer heads, sequence parallelism nothing new (the projections have gathered the row), pipelines other layers,
recomputation the same table again. Under context parallelism keys and values are all-gathered (and their
gradients reduce-scattered), put into global order, and masked by global index.

Plans (which keys a block of queries needs, and their masks) cost more than they may cost per layer, so they are
cached by their table's storage, which a recomputation's copy shares.

Multi-head latent attention has values narrower than its keys, which is supported.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from agentrl.errors import InvalidInput
from agentrl.models.reach import Reach
from agentrl.train.trainers import attention as shared
from agentrl.train.trainers.flex import FlexPlan
from agentrl.train.trainers.megatron.table import END, HELD

KEPT_PLANS = 64
"""Tables whose plans are kept: more micro-batches than that are under way in no pipeline we build."""


class Plans:
    """A cache of plans by the table's storage; a table is kept as long as its plan."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], tuple[Tensor, shared.AttentionPlan, Tensor]] = OrderedDict()

    def of(self, table: Tensor, rank: int, length: int) -> tuple[shared.AttentionPlan, Tensor]:
        """The plan for a context-parallel rank's `length` queries, and the permutation that sorts gathered keys."""
        key = (table.data_ptr(), rank)
        if key not in self._known:
            held = table[HELD]
            plan = make_plan(table[END], held[rank * length : (rank + 1) * length])
            self._known[key] = table, plan, torch.argsort(held)
            if len(self._known) > KEPT_PLANS:
                self._known.popitem(last=False)
        _, plan, order = self._known[key]
        return plan, order

    def forget(self) -> None:
        """Clear the cache, after a pass."""
        self._known.clear()


PLANS = Plans()


class ForestAttention(MegatronModule):  # type: ignore[misc]  # Megatron has no stubs
    """Attention within forests; the constructor takes what Megatron passes to every core attention.

    Args:
        config: Megatron's.
        layer_number: from 1 on.
        softmax_scale: scores are multiplied by it; None is one over the square root of the keys' width.
        k_channels: the keys' width where it is not `config.kv_channels` (MLA).
        window: how far along its path a query sees; None is all of it.
        softcap: scores are capped at it; see `agentrl.train.trainers.attention.AttentionPlan`, as for sinks, which are
            the parameter `softmax_offset` where Megatron's `softmax_type` is "learnable".
        _: arguments of other kinds of attention.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.layer_number, self.softcap = layer_number, softcap
        self.reach = None if window is None else Reach(window)
        self.scale = softmax_scale or (k_channels or config.kv_channels) ** -0.5
        self.softmax_offset: nn.Parameter | None = None
        if config.softmax_type == "learnable":
            device = None if config.use_cpu_initialization else torch.cuda.current_device()
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = nn.Parameter(torch.zeros(heads, dtype=config.params_dtype, device=device))
            set_tensor_model_parallel_attributes(self.softmax_offset, True, 0, 1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any) -> Tensor:
        """[s, 1, heads, d], [s, 1, kv heads, d] twice, and the table -> [s, 1, heads * d]."""
        if query.shape[1] != 1:
            raise InvalidInput(f"a forest is one row, not {query.shape[1]}")
        length = query.shape[0]
        if attention_mask is None:
            attention_mask = causal_table(length, query.device)
        context, rank = context_place()
        plan, order = PLANS.of(attention_mask, rank, length)
        if context > 1:
            key, value = all_gather_rows(key, order), all_gather_rows(value, order)
        heads = by_heads(query), by_heads(key), by_heads(value)
        out = plan.within(self.reach)(*heads, self.scale, self.softcap, self.softmax_offset)
        return out.reshape(length, 1, -1)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Return the state in the form of Megatron's checkpoints."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=metadata["dp_cp_group"],
        )


def context_place() -> tuple[int, int]:
    """The number of context-parallel ranks, and this rank's index."""
    if not parallel_state.is_initialized():
        return 1, 0
    return parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()


def by_heads(states: Tensor) -> Tensor:
    """[s, 1, heads, d] -> [1, heads, s, d]."""
    return states.permute(1, 2, 0, 3)


def all_gather_rows(states: Tensor, order: Tensor) -> Tensor:
    """The whole row's keys or values in global order; backward sums the gradients of all ranks' queries."""
    group = parallel_state.get_context_parallel_group()
    states_of_all: Tensor = gather_from_sequence_parallel_region(states.contiguous(), group=group)
    return states_of_all.index_select(0, order)


def causal_table(length: int, device: torch.device) -> Tensor:
    """A table for one plain row."""
    index = torch.arange(length, device=device)
    return torch.stack((index, torch.full_like(index, length), index))


def make_plan(end: Tensor, held: Tensor) -> shared.AttentionPlan:
    """The plan for a machine with, or without, a GPU."""
    return HeldFlexPlan(end, held) if end.device.type == "cuda" else HeldBlockPlan(end, held)


class HeldBlockPlan(shared.BlockPlan):
    """The plan for a CPU; the queries may be some blocks of the row, the keys are all of it.

    Args:
        end: [T] of the whole row.
        held: [L] the queries' global indices.
    """

    def __init__(self, end: Tensor, held: Tensor) -> None:
        everything = len(held) == len(end)
        queries = None if everything else held.numpy()
        self.begin(end.numpy(), depths(end).numpy(), None if everything else run_length(held), queries)


class HeldFlexPlan(FlexPlan):
    """The plan for a GPU, likewise."""

    def __init__(self, end: Tensor, held: Tensor, *, compiled: bool = True) -> None:
        self.begin(end, depths(end), None if len(held) == len(end) else held, compiled=compiled)


def depths(end: Tensor) -> Tensor:
    """Return the number of tokens above each on its path, [T]: those before it whose subtree (up to `end`) holds it."""
    passed = torch.bincount(end, minlength=len(end) + 1)[: len(end)].cumsum(0)
    return torch.arange(len(end), device=end.device) - passed


def run_length(held: Tensor) -> int:
    """The length of the runs of consecutive indices that `held` consists of."""
    breaks = torch.nonzero(held.diff() != 1).flatten() + 1
    return math.gcd(len(held), *breaks.tolist())

"""States replicated over tensor-parallel ranks, each of which uses its own part: backward sums the gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor


def copied(states: Tensor) -> Tensor:
    """Return the same states on every tensor-parallel rank; backward sums their gradients.

    Megatron's own (`copy_to_tensor_model_parallel_region`, 0.16.1) sums a copy of a gradient that is not contiguous,
    and returns the gradient itself, which is this rank's part alone.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return states
    shared: Tensor = _Copied.apply(states, group)  # type: ignore[no-untyped-call]
    return shared


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None

"""Shard a transformers model with FSDP2, by its layers.

Each decoder layer is gathered while it computes and freed behind it, forward and backward; what is outside of the
layers (embedding, last norm, head, tied or not) is one more group. transformers' own modules compute, on whole
weights, so whatever the torch trainer can compute can be sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from agentrl.train.trainers.reference import named_layers

T = TypeVar("T")


class Gathered(nn.Module):
    """A sharded model as a module whose forward is any computation with it.

    The trainer calls the trunk and the head, not the model's own forward: FSDP has to gather the weights outside of
    the layers around both.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        """The computation's result; a gradient through it reduces those of the weights over ranks."""
        return compute()


def shard_model(model: nn.Module, mesh: DeviceMesh, dtype: str) -> Gathered:
    """Shard a model's weights over a mesh's ranks, each on its own device.

    Gradients are summed: the normalisers of a loss are inside the forests' weights. A rank without a use for some
    weights, such as experts that none of its tokens chose, takes part with zeros.

    Args:
        model: of transformers, with the same weights on every rank.
        mesh: of one dimension.
        dtype: what is computed in; shards, and the sums of gradients, are in float32.
    """
    whole = Gathered(model)
    low = torch.bfloat16 if dtype == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for _, layer in named_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(whole, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing on the way
    cast(Any, whole).set_reduce_scatter_unused_params(True)
    return whole

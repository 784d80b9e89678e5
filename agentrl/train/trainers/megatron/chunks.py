"""A rank's chunks of the model: built by the settings, loaded, and wrapped for data parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from torch import Tensor

from agentrl.train.trainers.megatron.layout import ParallelLayout, experts_of
from agentrl.train.trainers.megatron.models import Family, build, load
from agentrl.train.trainers.megatron.models.images import put_tower
from agentrl.train.trainers.megatron.models.scores import put_heads
from agentrl.train.trainers.megatron.moe import moe_settings
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.update import device


def chunks_of(
    folder: str | Path,
    hf: Any,
    family: Family,
    config: MegatronConfig,
    layout: ParallelLayout,
    drawn: Mapping[str, Tensor] | None = None,
) -> list[Any]:
    """Load this rank's part of a folder's model, on its device.

    Args:
        folder: the folder.
        hf: its configuration.
        family: the model's; of one that sees, what `with_images` returns; of a score model, what `prepare_scores`
            returns.
        config: the trainer's settings.
        layout: how the model is shared.
        drawn: a score model's head, by the names of files, for a folder without one; None: a language model.
    """
    settings = megatron_settings(hf, family, config, layout)
    models = build(family, hf, **settings)
    put_tower(models, folder)
    if drawn is not None:
        put_heads(models, drawn)
    models = [model.to(device()) for model in models]
    load(models, folder, family, drawn)
    if layout.pipeline > 1 and models[0].share_embeddings_and_output_weights:
        share_embedding(models)
    return models


def megatron_settings(hf: Any, family: Family, config: MegatronConfig, layout: ParallelLayout) -> dict[str, Any]:
    """Megatron's settings for the trainer's."""
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    settings: dict[str, Any] = {
        "sequence_parallel": layout.sequence,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": config.dtype == "bfloat16",
    }
    if layout.interleave > 1:
        settings |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    if config.recompute == "full":
        settings |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if experts_of(hf):
        settings |= moe_settings(config.moe, family.settings(hf))
    return settings


def wrap_chunk(model: Any, layout: ParallelLayout, *, shares_state: bool) -> DistributedDataParallel:
    """The chunk with its gradients in one buffer, reduced over data-parallel ranks, or scattered (`shares_state`)."""
    model.config.finalize_model_grads_func = finalize_model_grads
    _allow_lengths(model, layout)
    sharing = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=shares_state, overlap_grad_reduce=False
    )
    return DistributedDataParallel(model.config, sharing, model)


def wrap_frozen(model: Any, layout: ParallelLayout) -> Any:
    """The chunk without gradients of its own: those of an adapter are its caller's to reduce."""
    model.requires_grad_(False)
    model.config.finalize_model_grads_func = None
    _allow_lengths(model, layout)
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad = None
    return model


def _allow_lengths(model: Any, layout: ParallelLayout) -> None:
    # Megatron refuses it with `allgather`, whose ranks need equal lengths; ours are (see `micro.lengths`), but they
    # change from one micro-batch to the next.
    model.config.variable_seq_lengths = layout.pipeline > 1 and layout.interleave == 1


def sparse_layers(config: Any) -> list[int]:
    """The numbers, from 1 on, of the layers with experts."""
    if not config.num_moe_experts:
        return []
    frequency = config.moe_layer_freq
    sparse = frequency if isinstance(frequency, list) else [1] * config.num_layers
    return [i + 1 for i, on in enumerate(sparse) if on]


@torch.no_grad()
def share_embedding(models: Sequence[Any]) -> None:
    """Copy the first stage's embedding to a tied head on the last."""
    for model in models:
        if model.pre_process or model.post_process:
            weight = model.shared_embedding_or_output_weight()
            if not model.pre_process:
                weight.zero_()
            dist.all_reduce(weight, group=parallel_state.get_embedding_group())

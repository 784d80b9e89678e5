"""The optimizer's state by parameter: full tensors in the parameter's shape, for any sharding.

    exp_avg, exp_avg_sq   Adam's moments
    momentum_buffer       Muon's momentum
    master                the float32 weight, of parameters that are not float32 themselves

Checkpoints consist of these, so a layout with the distributed optimizer can resume from one without it, and the other
way round. Megatron 0.16.1 has a format of its own (`fully_reshardable`) which is wrong where a buffer has several
buckets: it gathers them without the padding between them, and then slices parameters by offsets that include it. A tied
embedding on a pipeline has a bucket to itself; where its size is not a multiple of lcm(data, 128), the masters and
moments of every parameter after it were shifted. Here each bucket is gathered and sliced by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from agentrl.train.trainers.muon import SpreadMuon

State = dict[str, Tensor]


def kinds(part: Any, parameter: Tensor, *, adam: bool) -> tuple[str, ...]:
    """The names of what one of Megatron's optimizers keeps for a parameter."""
    moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq") if adam else ()
    if isinstance(part.optimizer, SpreadMuon):
        moments = ("momentum_buffer",)
    return moments if parameter.dtype == torch.float32 else (*moments, "master")


def parameters(part: Any) -> Iterator[Parameter]:
    """The model's parameters that an optimizer updates, other data-parallel ranks' shards included."""
    if hasattr(part, "gbuf_ranges"):
        for buffer in part.buffers:
            yield from buffer.param_index_map
    else:
        yield from mains(part)


def whole(part: Any, *, adam: bool) -> Iterator[tuple[Parameter, State]]:
    """Yield every parameter's state, at the first of the data-parallel ranks that share it; others may get none.

    Collective among those ranks. State must exist (`Update.materialise`).

    Args:
        part: one of Megatron's optimizers, distributed or not.
        adam: whether it keeps moments.
    """
    if hasattr(part, "gbuf_ranges"):
        for buffer, ranges in zip(part.buffers, part.gbuf_ranges, strict=True):
            (buckets,) = ranges.values()
            for bucket, held in zip(buffer.buckets, buckets, strict=True):
                yield from _gathered(part, buffer, bucket, held["param_map"], adam=adam)
    else:
        for parameter, main in mains(part).items():
            yield parameter, _state(part, main, kinds(part, parameter, adam=adam))


@torch.no_grad()
def fill(part: Any, states: Mapping[Parameter, State]) -> None:
    """Load parameters' full state, or this rank's shard of it."""
    if hasattr(part, "gbuf_ranges"):
        for buckets in (buckets for ranges in part.gbuf_ranges for buckets in ranges.values()):
            for parameter, place in (entry for held in buckets for entry in held["param_map"].items()):
                share = slice(place["param"].start, place["param"].end)
                own = _state(part, _main(part, parameter), tuple(states[parameter]))
                for kind, tensor in states[parameter].items():
                    own[kind].copy_(tensor.flatten()[share])
    else:
        for parameter, main in mains(part).items():
            own = _state(part, main, tuple(states[parameter]))
            for kind, tensor in states[parameter].items():
                own[kind].copy_(tensor)


def _gathered(
    part: Any, buffer: Any, bucket: Any, held: Mapping[Parameter, Any], *, adam: bool
) -> Iterator[tuple[Parameter, State]]:
    """A bucket's parameters; it is split evenly over the ranks."""
    group = part.data_parallel_group
    first, ranks = dist.get_process_group_ranks(group)[0], group.size()
    here = dist.get_rank() == first
    within = [p for p, (_, _, index) in buffer.param_index_map.items() if index == bucket.bucket_id]
    flat: State = {}
    for kind in kinds(part, within[0], adam=adam):
        size = bucket.grad_data.numel() // ranks
        own = torch.zeros(size, dtype=torch.float32, device=bucket.grad_data.device)
        for parameter, place in held.items():
            share = slice(place["gbuf_local"].start, place["gbuf_local"].end)
            own[share].copy_(_state(part, _main(part, parameter), (kind,))[kind])
        pieces = [torch.empty_like(own) for _ in range(ranks)] if here else None
        dist.gather(own, pieces, first, group)
        if pieces is not None:
            flat[kind] = torch.cat(pieces).cpu()
    if here:
        for parameter in within:
            start, end, _ = buffer.param_index_map[parameter]
            share = slice(start - bucket.offset, end - bucket.offset)
            yield parameter, {kind: tensor[share].view(parameter.shape) for kind, tensor in flat.items()}


def _main(part: Any, parameter: Parameter) -> Tensor:
    """The tensor that the distributed optimizer updates for a parameter: this rank's shard."""
    group, order = part.model_param_group_index_map[parameter]
    main: Tensor = part.optimizer.param_groups[group]["params"][order]
    return main


def mains(part: Any) -> dict[Parameter, Tensor]:
    """Return the tensor that an unsharded optimizer updates for each parameter: itself, or its float32 master."""
    if not hasattr(part, "float16_groups"):
        return {p: p for group in part.optimizer.param_groups for p in group["params"]}
    models = (*part.float16_groups, *part.fp32_from_fp32_groups)
    mains = (*part.fp32_from_float16_groups, *part.fp32_from_fp32_groups)
    return {p: q for model, main in zip(models, mains, strict=True) for p, q in zip(model, main, strict=True)}


def _state(part: Any, main: Tensor, wanted: tuple[str, ...]) -> State:
    held = part.optimizer.state[main] if set(wanted) - {"master"} else {}
    return {kind: main if kind == "master" else held[kind] for kind in wanted}

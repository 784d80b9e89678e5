"""Results of ranks, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.train.algorithms.objective import Meter
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers.learner import RankStepResult


def join_results(parts: Sequence[tuple[bool, RankStepResult]]) -> RankStepResult:
    """Combine a training step over all ranks.

    Args:
        parts: of each rank, and whether its loss and tokens count: those that compute the same rows count once.
    """
    (_, own), *_ = parts
    together = replace(own, loss=0.0, meter=Meter(), critic=Meter())
    for counts, part in parts:
        together.critic.join(part.critic)
        if counts:
            together.loss += part.loss
            together.meter.join(part.meter)
    return together


Entry = tuple[int, Tensor, Tensor]
"""A micro-batch's entry: the index of its forest in the batch, tokens of that forest, and their values."""


def per_token(forests: Sequence[Forest], entries: Iterable[Entry]) -> list[Tensor]:
    """Values at their tokens: [T] for each forest, 0 elsewhere.

    Args:
        forests: what was computed.
        entries: what ranks computed of them; that of fillers, -1, is left out.
    """
    found = [torch.zeros(len(forest)) for forest in forests]
    for origin, tokens, values in entries:
        if origin >= 0:
            found[origin][tokens] = values
    return found


def all_gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return every rank's value, on every rank; None: of the default group."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def sum_over_ranks(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Sum tensors over a gloo group of ranks, in place."""
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))

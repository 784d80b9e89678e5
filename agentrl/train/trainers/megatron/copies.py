"""A second set of a rank's weights: a reference, a moving average. See `agentrl.train.trainers.copies`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.train.trainers.megatron.update import device


class RankWeightCopy:
    """A copy of a rank's weights as they are now.

    Args:
        models: the rank's.
        on_device: it is kept on the device, and exchanged by its tensors; else in the CPU's memory, and copied in.
    """

    def __init__(self, models: Sequence[Any], *, on_device: bool) -> None:
        self.models, self.on_device = models, on_device
        self.tensors = self._copied()

    def renew(self) -> None:
        """Make it a copy of the weights as they are now."""
        self.tensors = self._copied()

    @torch.no_grad()
    def move_towards(self, decay: float) -> None:
        """Make the copy `decay` times itself plus the rest times the weights."""
        for mean, weight in zip(self.tensors, self._weights(), strict=True):
            mean.lerp_(weight.detach().to(mean), 1 - decay)

    @contextlib.contextmanager
    def exchanged(self) -> Iterator[None]:
        """Swap the models' weights and the copy's within the block."""
        weights = [weight.data for weight in self._weights()] if self.on_device else self._copied()
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(weights)

    @torch.no_grad()
    def _put(self, tensors: Sequence[Tensor]) -> None:
        for weight, tensor in zip(self._weights(), tensors, strict=True):
            if self.on_device:
                weight.data = tensor
            else:
                weight.copy_(tensor)

    def _copied(self) -> list[Tensor]:
        where = device() if self.on_device else "cpu"
        return [weight.detach().to(where, copy=True) for weight in self._weights()]

    def _weights(self) -> Iterator[Tensor]:
        """Parameters, and the biases that balance experts."""
        for model in self.models:
            yield from model.parameters()
            yield from (buffer for name, buffer in model.named_buffers() if name.endswith("expert_bias"))

"""A second set of a model's weights: a reference, a moving average.

The model computes with them after an exchange of contents, in place. So there is one model, whatever is hooked to its
modules and parameters, and each rank of a sharded model keeps a copy of its own shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from agentrl.train.trainers.lora import is_adapter
from agentrl.train.trainers.lora_full import full_names


class WeightCopy:
    """A copy of a model's parameters as they are now, tied ones once; with an adapter, of what is trained alone."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        named = dict(model.named_parameters())
        full = set(full_names(model))
        own = {name: p for name, p in named.items() if is_adapter(name) or name in full} or named
        self.tensors = {name: parameter.detach().clone() for name, parameter in own.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """The copy by the parameters' names."""
        return dict(self.tensors)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the copy's tensors; others in the state are ignored."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])

    @torch.no_grad()
    def move_towards(self, decay: float) -> None:
        """Make the copy `decay` times itself plus the rest times the model."""
        for copy, weight in self._pairs():
            copy.lerp_(weight, 1 - decay)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Swap the model's weights and the copy's within the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for copy, weight in self._pairs():
            kept = weight.clone()
            weight.copy_(copy)
            copy.copy_(kept)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter's copy and the parameter, as far as this process holds them."""
        for name, parameter in self.model.named_parameters():
            if name in self.tensors:
                yield local(self.tensors[name]), local(parameter.detach())


def local(tensor: Tensor) -> Tensor:
    """A sharded tensor's own shard, which shares its memory; another tensor itself."""
    return cast(Tensor, cast(Any, tensor).to_local()) if hasattr(tensor, "to_local") else tensor

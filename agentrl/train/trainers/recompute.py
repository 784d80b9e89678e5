"""Recomputation of decoder layers in the backward pass."""

from __future__ import annotations

import functools

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.errors import ConfigError


def recompute_layers(model: nn.Module) -> None:
    """Keep only each decoder layer's input, and recompute the layer in backward: the same gradient bit for bit.

    transformers does so in training mode only. The layers are set to it, not the modules within them, so that dropout
    stays off.

    Raises:
        ConfigError: the model's layers can't be recomputed.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"trainer.recompute=full: {type(model).__name__} has no layers that transformers recomputes")
    for layer in layers:
        layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)
        layer.gradient_checkpointing = layer.training = True

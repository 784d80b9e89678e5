"""The torch trainer's network: a language model, or a score model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from agentrl.models.mixers import wrap_mixers
from agentrl.models.scoring import ScoreHead, load_score_model
from agentrl.models.vision import load_lm
from agentrl.train.trainers.attention import NAME
from agentrl.train.trainers.lora import Lora
from agentrl.train.trainers.lora_quantised import pack


def load_network(folder: Path, head: ScoreHead | None, seed: int, lora: Lora | None = None) -> nn.Module:
    """A folder's model in float32, its attention following forests.

    Args:
        folder: of Hugging Face.
        head: of the algorithm; None: the vocabulary's.
        seed: of a new head.
        lora: the adapter that it is to have; it may hold the frozen layers in four bits.
    """
    model: nn.Module
    if head is None:
        model = load_lm(folder, torch.float32, NAME)
    else:
        model = load_score_model(folder, head, torch.float32, NAME, seed)
    if lora is not None and lora.config.quantize != "none":
        pack(model, folder, lora.full_modules(model))
    wrap_mixers(model)
    return model

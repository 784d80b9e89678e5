"""The torch trainer's network: a language model, or a score model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from agentrl.models.mixers import wrap_mixers
from agentrl.models.scoring import ScoreHead, load_score_model
from agentrl.models.vision import load_lm
from agentrl.train.trainers.attention import NAME


def load_network(folder: Path, head: ScoreHead | None, seed: int) -> nn.Module:
    """A folder's model in float32, its attention following forests.

    Args:
        folder: of Hugging Face.
        head: of the algorithm; None: the vocabulary's.
        seed: of a new head.
    """
    model: nn.Module
    if head is None:
        model = load_lm(folder, torch.float32, NAME)
    else:
        model = load_score_model(folder, head, torch.float32, NAME, seed)
    wrap_mixers(model)
    return model

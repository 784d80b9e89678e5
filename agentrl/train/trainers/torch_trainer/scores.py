"""The torch trainer's network: a language model, or a score model, whose scores are read at the trained tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl.models.loading import load_causal_lm
from agentrl.models.mixers import wrap_mixers
from agentrl.models.scoring import HEAD, ScoreHead, load_score_model
from agentrl.models.vision import load_vision_lm, sees
from agentrl.train.forest.forest import Rows
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
        load = load_vision_lm if sees(folder) else load_causal_lm
        model = load(folder, torch.float32, NAME)
    else:
        model = load_score_model(folder, head, torch.float32, NAME, seed)
    wrap_mixers(model)
    return model


def read_scores(model: nn.Module, hidden: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The score of each row's target, or with several classes the log-probability of its label.

    Args:
        model: has a linear head [*, d] -> [*, K].
        hidden: [T, d], the last hidden states of the whole forest.
        rows: P rows; with several classes their field `target` is the label's number.

    Returns:
        Scores, or log-probabilities in nats, [P], and the entropy of the classes, [P] (0 for a score), in float32.
    """
    outputs = model.get_submodule(HEAD)(hidden.index_select(0, rows.target)).float()
    if outputs.shape[1] == 1:
        return outputs[:, 0], torch.zeros_like(outputs[:, 0]).detach()
    logps = torch.log_softmax(outputs, -1)
    label = rows.fields["target"].values.long()
    return logps.gather(1, label[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)

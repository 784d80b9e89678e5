"""Score models on Megatron-core: a linear head of scores in the place of the vocabulary's.

The head is whole on every rank of the last stage: each computes the scores of its rows from whole hidden states, so
tensor-parallel ranks have the same gradient of it, and data-parallel ones sum theirs as they do of a norm's weight.
It keeps the name of Megatron's output layer, by which checkpoints know it. It is never tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.models.scoring import HEAD, ScoreHead, draw_head
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.layouts import Whole

_WEIGHT, _BIAS = "output_layer.weight", "output_layer.bias"


def prepare_scores(family: Family, hf: Any, head: ScoreHead, seed: int) -> tuple[Family, dict[str, Tensor]]:
    """Return the family of a model's score model, and a new head by the names of files; `hf` is no longer tied.

    Args:
        family: of the language model, whose head a folder may hold: it is not read.
        hf: the model's configuration.
        head: the outputs.
        seed: of a new head.
    """
    hf.tie_word_embeddings = False
    drawn = {f"{HEAD}.weight": draw_head(len(head.labels), int(hf.hidden_size), hf, seed)}
    if head.per_token:  # as transformers' classes have it
        drawn[f"{HEAD}.bias"] = torch.zeros(len(head.labels))
    rows = {_WEIGHT: Whole(f"{HEAD}.weight"), "unread": family.outside[_WEIGHT]}
    if head.per_token:
        rows[_BIAS] = Whole(f"{HEAD}.bias")
    return replace(family, outside={**family.outside, **rows}), drawn


def put_heads(models: Sequence[Any], drawn: Mapping[str, Tensor]) -> None:
    """Put a head of scores, whose weights are still to be loaded, on the last stage's chunk."""
    weight, has_bias = drawn[f"{HEAD}.weight"], f"{HEAD}.bias" in drawn
    for model in models:
        if model.post_process:
            dtype = model.config.params_dtype
            model.output_layer = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias, dtype=dtype)


def head_of_scores(model: Any) -> nn.Linear | None:
    """Return the head of scores of a last stage's chunk; None where it has the vocabulary's."""
    return model.output_layer if isinstance(model.output_layer, nn.Linear) else None

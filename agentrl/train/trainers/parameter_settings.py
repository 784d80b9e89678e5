"""Settings of the trained weights: which, how fast, and their average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from agentrl.config import Fraction, TrainerConfig


class ParameterConfig(TrainerConfig):
    """The settings that all built-in trainers have for the weights that they train."""

    only_with: ClassVar[Mapping[str, str]] = {"vision_lr": "!vision=frozen"}
    freeze: tuple[str, ...] = ()
    """Patterns (`*` matches anything) of weights' Hugging Face names that are not trained: `model.embed_tokens.*`."""
    lr_factors: dict[str, PositiveFloat] = Field(default={})
    """Learning rates of weights by patterns of their names, as factors of `algo.lr`; the first that matches counts."""
    layer_decay: Fraction = 1.0
    """Each decoder layer's learning rate is this times the next higher one's, and the embedding's this times the first
    layer's (ULMFiT, arXiv:1801.06146, section 3.2); times `lr_factors`."""
    average_decay: Fraction | None = None
    """A moving average of the weights, for evaluation only: after each step it is this times itself plus the rest times
    the policy (float32, the memory of a second model). Each checkpoint has it in a folder `averaged`, a model of its
    own. None: there is none."""
    vision: Literal["full", "projector", "frozen"] = "full"
    """Of a vision-language model: all is trained, or all but its tower, or neither tower nor projector."""
    vision_lr: PositiveFloat | None = None
    """The learning rate of tower and projector, in place of `algo.lr` and `warm_start.lr`; None: theirs."""
    offload_optimizer: bool = False
    """The policy's optimizer state is kept in the CPU's memory between updates: AdamW's two moments, 8 bytes for each
    weight, leave the GPU to activations and to colocated engines, and are moved there and back for each update."""

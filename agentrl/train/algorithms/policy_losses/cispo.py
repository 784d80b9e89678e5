"""CISPO (MiniMax-M1, arXiv:2506.13585): the importance weight is clipped, and no token loses its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import NonNegativeFloat

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import LossConfig, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class CispoConfig(LossConfig):
    """Settings of `cispo`; the upper bound of 5 is that of Khatri et al., arXiv:2510.13786."""

    clip_low: Fraction = 1.0
    """The weight is clipped below at 1 - clip_low; 1: not at all."""
    clip_high: NonNegativeFloat = 4.0
    """The weight is clipped above at 1 + clip_high."""


class Cispo(PolicyLoss):
    """The score function with a clipped importance weight."""

    name = "cispo"
    settings = CispoConfig
    about = About(
        "CISPO, arXiv:2506.13585",
        "-sg(clip(r, 1 - low, 1 + high)) A log π",
        "rare tokens that a clip would leave without gradient",
        "TRL: cispo; verl: cispo",
    )
    config: CispoConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        ratio = tokens.ratio.detach()
        weight = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        tokens.metrics["policy/clip_fraction"] = (weight != ratio).float()
        return -weight * tokens.advantage * tokens.logp

"""Geometric-mean policy optimisation (Zhao et al., arXiv:2507.20673): token ratios are clipped, then averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import SequenceLoss, SequenceLossConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Summand, Tokens


class GmpoConfig(SequenceLossConfig):
    """Settings of `gmpo`; the clip is the paper's, in nats."""

    clip_low: PositiveFloat = 0.4
    """A token's log-ratio is clipped below at -clip_low."""
    clip_high: PositiveFloat = 0.4
    """A token's log-ratio is clipped above at clip_high."""


class Gmpo(SequenceLoss):
    """-A exp(mean of the clipped log r over a sequence), clipped on the side where the advantage pushes."""

    name = "gmpo"
    settings = GmpoConfig
    about = About(
        "GMPO, arXiv:2507.20673",
        "-A exp(mean over the sequence of clip(log r, -low, high) on the side where A pushes)",
        "outlier token ratios; a wider clip than PPO's",
        "TRL: GMPOTrainer; verl: geo_mean",
    )
    config: GmpoConfig

    @property
    def summand(self) -> Summand:
        return self._clip

    def _clip(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        upper, lower = log_ratio.clamp(max=self.config.clip_high), log_ratio.clamp(min=-self.config.clip_low)
        return upper.where(advantage > 0, lower)

    def __call__(self, tokens: Tokens) -> Tensor:
        log_ratio = tokens.logp - tokens.old_logp
        clipped = self._clip(log_ratio, tokens.sequence_advantage)
        tokens.metrics["policy/clip_fraction"] = (clipped != log_ratio).float()
        return -tokens.sequence_advantage * (tokens.sequence_term_sum / tokens.sequence_length).exp()

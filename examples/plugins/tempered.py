"""A policy loss as a plug-in: the score function with a tempered importance weight, r^alpha in place of r.

    agentrl train env=calculator algo=rloo algo.loss=examples/plugins/tempered.py algo.loss.alpha=0.5 algo.epochs=2

Exponents below 1 trade the bias of ignoring who sampled a token (0) for the variance of importance sampling (1), as in
Hachiya et al., Adaptive importance sampling for value function approximation, Neural Networks 22 (2009).
"""

from __future__ import annotations

from torch import Tensor

from agentrl.plugins.loss import Fraction, LossConfig, PolicyLoss, Tokens


class TemperedConfig(LossConfig):
    """Settings of the tempered weight."""

    alpha: Fraction = 0.5
    """The exponent of the importance weight."""


class Tempered(PolicyLoss):
    """See the module."""

    name = "tempered"
    settings = TemperedConfig
    config: TemperedConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        """-sg(r^alpha) A log π."""
        return -(tokens.ratio.detach() ** self.config.alpha) * tokens.advantage * tokens.logp

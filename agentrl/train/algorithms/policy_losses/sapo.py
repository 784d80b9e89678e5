"""Soft adaptive policy optimisation (Gao et al., arXiv:2511.20347): a smooth gate in place of the clip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import LossConfig, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class SapoConfig(LossConfig):
    """Settings of `sapo`; the temperatures are the paper's."""

    tau_positive: PositiveFloat = 1.0
    """The rate at which the gate closes around a ratio of 1, where the advantage is positive."""
    tau_negative: PositiveFloat = 1.05
    """The same where it is not."""


class Sapo(PolicyLoss):
    """-(4 / τ) sigmoid(τ (r - 1)) A: slope 1 at a ratio of 1, and less away from it."""

    name = "sapo"
    settings = SapoConfig
    about = About(
        "SAPO, arXiv:2511.20347",
        "-(4 / τ) sigmoid(τ (r - 1)) A, τ by the sign of A",
        "a clip that is too abrupt",
        "TRL: sapo; verl: sapo",
    )
    config: SapoConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        gates = [
            (tau * (tokens.ratio - 1)).sigmoid() * (4 / tau)
            for tau in (self.config.tau_positive, self.config.tau_negative)
        ]
        return -gates[0].where(tokens.advantage > 0, gates[1]) * tokens.advantage

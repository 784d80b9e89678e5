"""Kahneman-Tversky optimisation (Ethayarajh et al., arXiv:2402.01306): single sequences with a verdict, no pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import SequenceLoss, SequenceLossConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class KtoLossConfig(SequenceLossConfig):
    """Settings of the loss `kto`."""

    beta: PositiveFloat = 0.1
    """The strength with which the policy is held to the reference."""
    desirable_weight: PositiveFloat = 1.0
    """Factor of the loss of desirable sequences. The paper asks for desirable_weight times their number to be 1 to 4/3
    of undesirable_weight times the others'."""
    undesirable_weight: PositiveFloat = 1.0
    """Factor of the loss of undesirable sequences."""


class KtoLoss(SequenceLoss):
    """λ (1 - sigmoid(±β (S - R - z))), z = max(0, mean of S - R over the batch's mismatched completions)."""

    name = "kto"
    settings = KtoLossConfig
    about = About(
        "KTO, arXiv:2402.01306",
        "λ (1 - sigmoid(±β (S - R - z))), z = max(0, mean of S - R over mismatched completions), without a gradient",
        "verdicts on single sequences; many more of one kind than of the other",
        "TRL: KTOTrainer, loss_type=kto",
    )
    compares = "labels"
    reference = True
    config: KtoLossConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        config, verdict = self.config, tokens.sequence_advantage
        baseline = tokens.divergence.clamp(min=0)
        margin = config.beta * verdict * (tokens.sequence_logp - tokens.sequence_ref_logp - baseline)
        tokens.weighted |= {
            "preference/margin": margin.detach(),
            "preference/accuracy": (margin > 0).float(),
            "preference/baseline": baseline,
        }
        weight = (verdict > 0) * config.desirable_weight + (verdict < 0) * config.undesirable_weight
        return weight * (-margin).sigmoid()

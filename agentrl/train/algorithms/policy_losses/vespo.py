"""VESPO (Shen et al., arXiv:2602.10693): a smooth weight over the ratio of a whole sequence, without its length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import SequenceLoss, SequenceLossConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens

LOG_RATIOS = (math.log(1e-8), 20.0)
"""Log-ratios of sequences are clamped to this before they are exponentiated, as in the authors' code."""


class VespoConfig(SequenceLossConfig):
    """Settings of `vespo`; the defaults are the authors'."""

    k_positive: PositiveFloat = 2.0
    """Exponent of the ratio where the advantage is positive: how quickly small ratios lose weight."""
    lambda_positive: PositiveFloat = 3.0
    """Rate of the exponential there: how quickly large ratios lose weight."""
    k_negative: PositiveFloat = 3.0
    """The exponent where the advantage is negative."""
    lambda_negative: PositiveFloat = 2.0
    """The rate where it is negative."""


class Vespo(SequenceLoss):
    """-sg(φ(R)) A log π with φ(R) = R^k exp(λ (1 - R)), which is 1 at R = 1."""

    name = "vespo"
    settings = VespoConfig
    about = About(
        "VESPO, arXiv:2602.10693",
        "-sg(R^k exp(λ (1 - R))) A log π, R = Π r over the sequence, k and λ by the sign of A",
        "asynchronous runs with large staleness",
        "TRL: vespo",
    )
    config: VespoConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        config, log_ratio = self.config, tokens.sequence_log_ratio.detach().clamp(*LOG_RATIOS)
        weights = [
            (k * log_ratio + rate * (1 - log_ratio.exp())).exp()
            for k, rate in ((config.k_positive, config.lambda_positive), (config.k_negative, config.lambda_negative))
        ]
        return -weights[0].where(tokens.advantage >= 0, weights[1]) * tokens.advantage * tokens.logp

"""Group sequence policy optimisation (Zheng et al., arXiv:2507.18071): the ratio is that of a whole sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import NonNegativeFloat

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import SequenceLoss, SequenceLossConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class GspoLossConfig(SequenceLossConfig):
    """Settings of `gspo` and `gspo_token`; the clip is that of the paper's section 5.1."""

    clip_low: Fraction = 3e-4
    """The sequence's ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegativeFloat = 4e-4
    """The sequence's ratio is clipped above at 1 + clip_high."""


class GspoLoss(SequenceLoss):
    """The sequence's ratio s = (π(y) / π_old(y))^(1 / |y|), clipped as a whole (equations 5 and 7)."""

    name = "gspo"
    settings = GspoLossConfig
    about = About(
        "GSPO, arXiv:2507.18071",
        "-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean of log r over the sequence)",
        "mixture-of-experts models, long sequences",
        "TRL: importance_sampling_level=sequence; verl: gspo",
    )
    config: GspoLossConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        """Compute each token's loss."""
        return self._surrogate(tokens, tokens.sequence_log_ratio / tokens.sequence_length, tokens.sequence_advantage)

    def _surrogate(self, tokens: Tokens, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        from agentrl.train.algorithms.losses import clipped

        whole = tokens.with_advantage(advantage)
        loss = clipped(whole, self.config.clip_low, self.config.clip_high, log_ratio.exp())
        tokens.metrics |= whole.metrics
        return loss


class GspoToken(GspoLoss):
    """The sequence's ratio with the gradient of each token, whose advantages may differ."""

    name = "gspo_token"
    about = About(
        "GSPO-token, arXiv:2507.18071",
        "as gspo, with s_t = sg(s) π / sg(π) and the token's own A",
        "gspo with advantages by turn or token",
        "TRL: importance_sampling_level=sequence_token; verl: gspo",
    )

    def __call__(self, tokens: Tokens) -> Tensor:
        """Compute each token's loss."""
        whole = (tokens.sequence_log_ratio / tokens.sequence_length).detach()
        return self._surrogate(tokens, whole + tokens.logp - tokens.logp.detach(), tokens.advantage)

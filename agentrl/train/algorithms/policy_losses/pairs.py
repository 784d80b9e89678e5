"""Losses over pairs of sequences: DPO, IPO, robust DPO, SimPO, CPO and ORPO.

Each scores both sequences of a pair, and is a function of the chosen one's score c and the rejected one's r. S is a
sequence's summed log-probability, R that under the reference, n its trained tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import SequenceLoss, SequenceLossConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens

Smoothing = Annotated[float, Field(ge=0, lt=0.5)]


class PairLossConfig(SequenceLossConfig):
    """Settings of every loss over pairs."""

    beta: PositiveFloat = 0.1
    """Factor of the scores' difference: how strongly the policy is held to the reference, where the loss has one."""
    nll_coef: NonNegativeFloat = 0.0
    """Weight of the chosen sequence's mean negative log-likelihood, which is added (RPO, arXiv:2404.19733)."""


class PairLoss(SequenceLoss):
    """A base of losses over pairs: subclasses say how a sequence is scored, and what is made of two scores."""

    settings = PairLossConfig
    compares = "pairs"
    config: PairLossConfig

    def score(self, logp: Tensor, ref_logp: Tensor, length: Tensor) -> Tensor:
        """Return each sequence's score, [P]; by default its log-probability, S.

        Args:
            logp: S.
            ref_logp: R; 0 without a reference.
            length: n.
        """
        return logp

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """Return the pairs' losses, [P], of their scores c and r."""
        raise NotImplementedError

    def __call__(self, tokens: Tokens) -> Tensor:
        first, lengths = tokens.sequence_advantage > 0, (tokens.sequence_length, tokens.partner_length)
        own = self.score(tokens.sequence_logp, tokens.sequence_ref_logp, lengths[0])
        partner = self.score(tokens.partner_logp, tokens.partner_ref_logp, lengths[1])
        chosen, rejected = own.where(first, partner), partner.where(first, own)
        loss = self.compare(chosen, rejected)
        if self.config.nll_coef:
            logp = tokens.sequence_logp / lengths[0]
            loss = loss - self.config.nll_coef * logp.where(first, tokens.partner_logp / lengths[1])
        rewards = {"chosen": self.config.beta * chosen.detach(), "rejected": self.config.beta * rejected.detach()}
        tokens.weighted |= {f"preference/{name}": reward for name, reward in rewards.items()}
        tokens.weighted["preference/margin"] = rewards["chosen"] - rewards["rejected"]
        tokens.weighted["preference/accuracy"] = (chosen > rejected).float()
        return loss


class DpoLossConfig(PairLossConfig):
    """Settings of `dpo` and `robust`."""

    label_smoothing: Smoothing = 0.0
    """The share of pairs whose order is taken to be wrong, below 0.5."""
    per_token: bool = False
    """Scores are means over a sequence's tokens instead of sums, so that longer sequences have no larger ones."""


class DpoLoss(PairLoss):
    """-log sigmoid(β (c - r)) with the log-ratio to the reference as score (Rafailov et al., equation 7)."""

    name = "dpo"
    settings = DpoLossConfig
    about = About(
        "DPO, arXiv:2305.18290; smoothing: Mitchell, 2023; per_token: Meng et al., arXiv:2405.14734, table 3",
        "-(1 - ε) log sigmoid(β (c - r)) - ε log sigmoid(-β (c - r)), c, r = S - R, or (S - R) / n; ε: label_smoothing",
        "pairs of any origin, held to a reference",
        "TRL: DPOTrainer, loss_type=sigmoid, sigmoid_norm (per_token)",
    )
    reference = True
    config: DpoLossConfig

    def score(self, logp: Tensor, ref_logp: Tensor, length: Tensor) -> Tensor:
        """Return the log-ratio to the reference, or its mean over the tokens."""
        return (logp - ref_logp) / (length if self.config.per_token else 1)

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        from agentrl.train.algorithms.losses import smoothed_logistic

        return smoothed_logistic(self.config.beta * (chosen - rejected), self.config.label_smoothing)


class RobustLoss(DpoLoss):
    """DPO's loss, unbiased where labels are wrong at a known rate (Chowdhury et al., arXiv:2403.00409)."""

    name = "robust"
    about = About(
        "Robust DPO, arXiv:2403.00409",
        "(-(1 - ε) log sigmoid(β (c - r)) + ε log sigmoid(-β (c - r))) / (1 - 2 ε), as dpo",
        "pairs of which a known share is the wrong way round",
        "TRL: DPOTrainer, loss_type=robust",
    )

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        from agentrl.train.algorithms.losses import unbiased_logistic

        return unbiased_logistic(self.config.beta * (chosen - rejected), self.config.label_smoothing)


class IpoConfig(PairLossConfig):
    """Settings of `ipo`."""

    per_token: bool = True
    """Scores are means over a sequence's tokens, as in the authors' experiments; otherwise sums, as in the paper."""


class IpoLoss(PairLoss):
    """(c - r - 1 / (2 β))² with the log-ratio to the reference as score (Azar et al., equation 17)."""

    name = "ipo"
    settings = IpoConfig
    about = About(
        "IPO, arXiv:2310.12036",
        "(c - r - 1 / (2 β))², c, r = (S - R) / n",
        "pairs that are nearly deterministic, where dpo runs away from the reference",
        "TRL: DPOTrainer, loss_type=ipo",
    )
    reference = True
    config: IpoConfig

    def score(self, logp: Tensor, ref_logp: Tensor, length: Tensor) -> Tensor:
        """Return the log-ratio to the reference, or its mean over the tokens."""
        return (logp - ref_logp) / (length if self.config.per_token else 1)

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return (chosen - rejected - 1 / (2 * self.config.beta)).square()


class SimpoConfig(PairLossConfig):
    """Settings of `simpo`; the defaults are the paper's."""

    beta: PositiveFloat = 2.0
    """Factor of the scores' difference."""
    gamma: NonNegativeFloat = 1.0
    """The margin by which the chosen sequence is to win."""
    label_smoothing: Smoothing = 0.0
    """The share of pairs whose order is taken to be wrong, below 0.5."""


class SimpoLoss(PairLoss):
    """-log sigmoid(β (c - r) - gamma) with the mean log-probability as score (Meng et al., equation 6)."""

    name = "simpo"
    settings = SimpoConfig
    about = About(
        "SimPO, arXiv:2405.14734",
        "-log sigmoid(β (c - r) - gamma), c, r = S / n",
        "no memory or time for a reference; sequences of very different lengths",
        "TRL: CPOTrainer, loss_type=simpo",
    )
    config: SimpoConfig

    def score(self, logp: Tensor, ref_logp: Tensor, length: Tensor) -> Tensor:
        return logp / length

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        from agentrl.train.algorithms.losses import smoothed_logistic

        margin = self.config.beta * (chosen - rejected) - self.config.gamma
        return smoothed_logistic(margin, self.config.label_smoothing)


class CpoConfig(PairLossConfig):
    """Settings of `cpo`."""

    nll_coef: NonNegativeFloat = 1.0
    label_smoothing: Smoothing = 0.0
    """The share of pairs whose order is taken to be wrong, below 0.5."""


class CpoLoss(PairLoss):
    """-log sigmoid(β (c - r)) with the log-probability as score, and the chosen one's likelihood (Xu et al.)."""

    name = "cpo"
    settings = CpoConfig
    about = About(
        "CPO, arXiv:2401.08417",
        "-log sigmoid(β (c - r)) - nll_coef S_w / n_w, c, r = S",
        "no reference; the chosen sequences are worth imitating",
        "TRL: CPOTrainer, loss_type=sigmoid",
    )
    config: CpoConfig

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        from agentrl.train.algorithms.losses import smoothed_logistic

        return smoothed_logistic(self.config.beta * (chosen - rejected), self.config.label_smoothing)


class OrpoConfig(PairLossConfig):
    """Settings of `orpo`; the defaults are the paper's."""

    beta: PositiveFloat = 0.1
    """Weight of the comparison of odds: λ of the paper."""
    nll_coef: NonNegativeFloat = 1.0
    """Weight of the chosen sequence's mean negative log-likelihood."""


class OrpoLoss(PairLoss):
    """Likelihood of the chosen sequence, and its odds against the rejected one's (Hong et al., equations 6 and 7)."""

    name = "orpo"
    settings = OrpoConfig
    about = About(
        "ORPO, arXiv:2403.07691",
        "-S_w / n_w - β log sigmoid(log odds(c) - log odds(r)), c, r = exp(S / n), odds(p) = p / (1 - p)",
        "supervised learning and preferences in one stage, from a base model",
        "TRL: ORPOTrainer (its likelihood is of the prompt besides)",
    )
    config: OrpoConfig

    def score(self, logp: Tensor, ref_logp: Tensor, length: Tensor) -> Tensor:
        return logp / length

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        from agentrl.train.algorithms.losses import log_odds, smoothed_logistic

        return self.config.beta * smoothed_logistic(log_odds(chosen) - log_odds(rejected), 0.0)

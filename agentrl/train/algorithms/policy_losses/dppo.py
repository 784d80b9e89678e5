"""Divergence proximal policy optimisation (Qi et al., arXiv:2602.04879): a trust region by divergence, not by ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import LossConfig, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens

TINY = 1e-8
"""Added to the probabilities of all other tokens before their logarithms are taken, as in verl."""

THRESHOLDS = {"tv": 0.2, "kl": 0.05}
"""The largest divergence of a token, by its kind; those of open-instruct."""


class DppoConfig(LossConfig):
    """Settings of `dppo`."""

    divergence: Literal["tv", "kl"] = "tv"
    """Between the old and the current probability of the sampled token, as opposed to all others: total variation, or
    the Kullback-Leibler divergence KL(old || current)."""
    threshold: PositiveFloat | None = None
    """Tokens that the advantage pushes away from the old policy are masked beyond this; None is 0.2 for `tv` and 0.05
    for `kl`."""
    ratio_max: PositiveFloat = 20.0
    """The importance weight is truncated to this."""


class Dppo(PolicyLoss):
    """-sg(min(r, c)) A log π, masked where the divergence is large and the advantage increases it (equation 12)."""

    name = "dppo"
    settings = DppoConfig
    about = About(
        "DPPO, arXiv:2602.04879",
        "-sg(min(r, c)) A log π, 0 where D(π_old, π) > threshold and A pushes further",
        "large vocabularies: rare tokens are not clipped by their ratio",
        "verl: dppo_tv, dppo_kl",
    )
    config: DppoConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        config = self.config
        logp, old_logp = tokens.logp.detach(), tokens.old_logp
        p, old = logp.exp(), old_logp.exp()
        if config.divergence == "tv":
            far = (p - old).abs()
        else:
            far = old * (old_logp - logp) + (1 - old) * ((1 - old + TINY) / (1 - p + TINY)).log()
        threshold = THRESHOLDS[config.divergence] if config.threshold is None else config.threshold
        masked = (far > threshold) & ((p - old) * tokens.advantage > 0)
        tokens.metrics["policy/clip_fraction"] = masked.float()
        weight = tokens.ratio.detach().clamp(max=config.ratio_max) * ~masked
        return -weight * tokens.advantage * tokens.logp

"""Direct reward optimisation (Richemond et al., arXiv:2405.19107), with the advantage in place of a learned value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import LossConfig, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class DroConfig(LossConfig):
    """Settings of `dro`."""

    beta: PositiveFloat = 0.1
    """Weight of the quadratic penalty."""


class Dro(PolicyLoss):
    """-A log π + (β / 2) (log r)²: up to a constant (A - β log r)² / (2 β), token by token."""

    name = "dro"
    settings = DroConfig
    about = About(
        "DRO, arXiv:2405.19107",
        "-A log π + (β / 2) (log r)²",
        "offline or very stale sessions: no ratio is exponentiated",
        "verl: dro",
    )
    affine = True
    config: DroConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        log_ratio = tokens.logp - tokens.old_logp
        return -tokens.advantage * tokens.logp + 0.5 * self.config.beta * log_ratio.square()

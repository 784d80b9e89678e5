"""PPO's clipped ratio, with separate bounds below and above, and a bound on what negative advantages may weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, NonNegativeFloat

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_losses.base import LossConfig, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class ClippedConfig(LossConfig):
    """Settings of `clipped`."""

    clip_low: Fraction = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """With a negative advantage the ratio is clipped above at this besides, above 1 + clip_high; None: not at all."""


class Clipped(PolicyLoss):
    """PPO's surrogate (arXiv:1707.06347, equation 7), with dual clip (Ye et al., arXiv:1912.09729, equation 5)."""

    name = "clipped"
    settings = ClippedConfig
    about = About(
        "PPO, arXiv:1707.06347; dual clip, arXiv:1912.09729",
        "-min(r A, clip(r, 1 - low, 1 + high) A), and for A < 0 at most -c A",
        "the default; clip_high over clip_low keeps entropy up",
        "TRL: grpo, epsilon, epsilon_high, delta; verl: vanilla, clip_ratio_c",
    )
    config: ClippedConfig

    def __call__(self, tokens: Tokens) -> Tensor:
        """Compute each token's loss."""
        from agentrl.train.algorithms.losses import clipped

        return clipped(tokens, self.config.clip_low, self.config.clip_high, dual=self.config.dual_clip)

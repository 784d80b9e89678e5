"""Group-relative policy optimisation: the group's mean is the baseline.

Shao et al., DeepSeekMath (arXiv:2402.03300). And GRPO done right, with no division by the group's standard deviation,
nor by a session's length: Liu et al., Understanding R1-Zero-Like Training (arXiv:2503.20783).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, relative
from agentrl.types import Session


class GrpoConfig(PolicyGradientConfig):
    """Settings of `grpo`."""

    scale_by_std: bool = True
    """Divide a group's centred rewards by their standard deviation."""


class Grpo(PolicyGradient):
    """The GRPO algorithm."""

    name = "grpo"
    settings = GrpoConfig
    about = About(
        "DeepSeekMath, arXiv:2402.03300",
        "(R - mean) / (std + 1e-4), over the group",
        "the default",
        "TRL: grpo; verl: grpo",
    )
    group_size = 2
    config: GrpoConfig

    def judge(self, sessions: Sequence[Session]) -> Found:
        return relative(sessions, self.config, "mean", self.config.scale_by_std)


class DrGrpoConfig(GrpoConfig):
    """Settings of `dr_grpo`."""

    scale_by_std: bool = False
    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "constant"
    """The unit that the loss is averaged over; `constant` divides by `constant_tokens` in place of a session's
    length."""


class DrGrpo(Grpo):
    """The Dr. GRPO algorithm."""

    name = "dr_grpo"
    settings = DrGrpoConfig
    about = About(
        "Dr. GRPO, arXiv:2503.20783",
        "R - mean of the group; normalize=constant",
        "answers that grow longer without getting better",
        "TRL: dr_grpo, scale_rewards=none; verl: norm_adv_by_std_in_grpo=False",
    )
    config: DrGrpoConfig

"""GRPO done right: no division by the group's standard deviation, nor by a session's length.

Liu et al., Understanding R1-Zero-Like Training (arXiv:2503.20783).
"""

from __future__ import annotations

from typing import Literal

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig


class DrGrpoConfig(GrpoConfig):
    """Settings of `dr_grpo`."""

    scale_by_std: bool = False
    """Divide a group's centred rewards by their standard deviation."""
    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "constant"
    """What the loss is averaged over; `constant` divides by `constant_tokens` in place of a session's length."""


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

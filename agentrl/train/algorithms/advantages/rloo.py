"""REINFORCE with the mean of the *other* samples as baseline, which leaves the gradient unbiased.

Ahmadian et al., Back to Basics (arXiv:2402.14740).
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found, relative
from agentrl.types import Session


class Rloo(PolicyGradient):
    """The RLOO algorithm."""

    name = "rloo"
    settings = UnclippedConfig
    about = About(
        "RLOO, arXiv:2402.14740",
        "R - mean of the group's others",
        "an unbiased gradient; small groups",
        "TRL: RLOOTrainer; verl: rloo",
    )
    group_size = 2

    def judge(self, sessions: Sequence[Session]) -> Found:
        return relative(sessions, self.config, "leave-one-out")

"""Maximum-likelihood RL (Tajwar et al., arXiv:2602.02710): differences are divided by the group's mean reward."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, Rows, by_turn, change_advantages, means, relative, scores
from agentrl.types import Session

FLOOR = 1e-6
"""Added to the mean, so that a group without success has advantages of 0."""


class MaxRl(PolicyGradient):
    """With rewards of 0 and 1: successes weigh 1 over their rate, the gradient of the log of the pass rate."""

    name = "maxrl"
    settings = PolicyGradientConfig
    about = About(
        "MaxRL, arXiv:2602.02710",
        "(R - mean) / mean, over the group; rewards must not be negative",
        "rare success, rewards of 0 and 1",
        "TRL: MaxRLTrainer",
    )
    group_size = 2

    def judge(self, sessions: Sequence[Session]) -> Found:
        if not any(session.branches for session in sessions):
            return by_turn(sessions, "mean", _mean)
        mean = max(statistics.fmean(scores(sessions)), 0.0) + FLOOR
        return change_advantages(relative(sessions, self.config, "mean"), lambda a: a / mean)


def _mean(returns: Sequence[Rows]) -> float:
    """The mean over sessions of the whole episodes' returns."""
    whole = [means(rows)[0] for rows in returns if rows[0]]
    return max(statistics.fmean(whole), 0.0) + FLOOR if whole else 1.0

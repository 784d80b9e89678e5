"""REINFORCE++ (Hu et al., arXiv:2501.03262): advantages are standardised over the whole batch, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.branch_returns import Baseline
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, relative
from agentrl.types import Session


class ReinforcePp(PolicyGradient):
    """Returns less their mean over the batch's trained tokens, over their standard deviation."""

    name = "reinforce_pp"
    settings = PolicyGradientConfig
    about = About(
        "REINFORCE++, arXiv:2501.03262",
        "(R - mean) / std, over the trained tokens of the batch",
        "groups of one; many tasks in a batch",
        "verl: reinforce_plus_plus",
    )
    whitened = True
    baseline: Baseline = "none"

    def judge(self, sessions: Sequence[Session]) -> Found:
        return relative(sessions, self.config, self.baseline)


class ReinforcePpBaseline(ReinforcePp):
    """REINFORCE++ on returns less their group's mean."""

    name = "reinforce_pp_baseline"
    about = About(
        "REINFORCE++-baseline, arXiv:2501.03262",
        "R - mean of the group, then standardised over the trained tokens of the batch",
        "groups whose spread of rewards differs much",
        "TRL: scale_rewards=batch (by sessions); verl: reinforce_plus_plus_baseline",
    )
    group_size = 2
    baseline = "mean"

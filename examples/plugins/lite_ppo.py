"""Lite PPO (Liu et al., Tricks or Traps, arXiv:2508.08221) as a plug-in: an advantage in thirty lines.

    agentrl train env=calculator algo=examples/plugins/lite_ppo.py

Rewards are centred in their group and divided by the standard deviation over the whole batch, and the
loss is a mean over all tokens. Turns, branches and denominators are the library's business.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from agentrl.plugins.algorithm import (
    Credit,
    Group,
    NodeKey,
    PolicyGradient,
    PolicyGradientConfig,
    by_turn,
    changed,
    credit_of,
    scores,
)


class LitePpoConfig(PolicyGradientConfig):
    """Settings of Lite PPO."""

    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "token"
    """As in `AlgoConfig`."""
    floor: float = 1e-4
    """Added to the standard deviation."""


class LitePpo(PolicyGradient):
    """See the module."""

    name = "lite_ppo"
    settings = LitePpoConfig
    group_size = 2
    config: LitePpoConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        """Rewards less their group's mean, over the batch's standard deviation."""
        found = [score for group in groups for score in scores(group.scored)]
        scale = self.config.floor + (statistics.pstdev(found) if found else 0.0)
        return credit_of(
            groups,
            self.config,
            lambda sessions: by_turn(sessions, "mean"),
            lambda every: changed(every, lambda advantage: advantage / scale),
        )

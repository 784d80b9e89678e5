"""DAPO (Yu et al., arXiv:2503.14476): GRPO with a higher upper clip, dynamic sampling, and the loss over all tokens.

Each part is a setting that other algorithms have too: `loss.clip_high`, `rollout.filter=signal` (the same as
`dynamic_sampling` here) and `normalize=token`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import SerializeAsAny

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.advantages.grpo import Grpo, GrpoConfig
from agentrl.train.algorithms.base import Choice
from agentrl.train.algorithms.policy_losses import VALIDATED, LossConfig, preset
from agentrl.train.algorithms.returns import scores
from agentrl.types import Group

LEAST_SPREAD = 1e-6
"""Scores that differ by no more than this are the same."""


class DapoConfig(GrpoConfig):
    """Settings of `dapo`."""

    loss: Annotated[SerializeAsAny[LossConfig], preset("clipped", clip_high=0.28), VALIDATED] = LossConfig(
        name="clipped"
    )
    """The policy loss; the higher upper clip is the paper's (section 3.1)."""
    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "token"
    """The unit that the loss is averaged over; `token` is the paper's (section 3.3)."""
    dynamic_sampling: bool = True
    """Generate another task's group in place of one whose scores are all equal (section 3.2)."""


class Dapo(Grpo):
    """The DAPO algorithm."""

    name = "dapo"
    settings = DapoConfig
    about = About(
        "DAPO, arXiv:2503.14476",
        "as grpo; clip_high=0.28, normalize=token, groups without signal are replaced",
        "long answers, tasks that are often all solved or all failed",
        "TRL: dapo; verl: filter_groups, token-mean",
    )
    config: DapoConfig

    def select(self, group: Group) -> Choice:
        found = scores(group.scored)
        differ = bool(found) and max(found) - min(found) > LEAST_SPREAD
        return Choice.KEEP if differ or not self.config.dynamic_sampling else Choice.REPLACE

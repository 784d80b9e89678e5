"""RAFT++ (Xiong et al., arXiv:2504.11343): only the best sessions of a group are trained on, with PPO's clip."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.branch_returns import SAME
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.returns import Found, by_session, scores
from agentrl.types import Session


class RaftPp(PolicyGradient):
    """Advantage 1 for the sessions with the group's highest score, 0 for the others."""

    name = "raft_pp"
    settings = PolicyGradientConfig
    about = About(
        "RAFT++, arXiv:2504.11343",
        "1 where R is the group's highest, else 0; nothing where all are equal",
        "rewards of 0 and 1, quick first progress",
        "",
    )
    group_size = 2
    whole_sessions = True

    def judge(self, sessions: Sequence[Session]) -> Found:
        found = scores(sessions)
        best = max(found, default=0.0)
        differ = best - min(found, default=0.0) > SAME
        return by_session(sessions, [float(differ and best - score < SAME) for score in found])

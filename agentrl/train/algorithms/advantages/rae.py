"""Role-conditioned advantage estimation (SPIRAL, Liu et al., arXiv:2506.24119): a moving baseline for each role."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.config import AlgoConfig, Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import Credit, NodeKey, ids_by_group
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found, relative_to, scores
from agentrl.types import AGENT, Group, Session


class RaeConfig(UnclippedConfig):
    """Settings of `rae`."""

    baseline_decay: Fraction = 0.95
    """The share that a role's baseline keeps of itself with each session."""


class Rae(PolicyGradient):
    """Returns less the moving mean of the scores of the same environment and role (agent).

    The paper moves a baseline session by session; here it moves once in a step, to the mean of the step's scores and as
    far as that many sessions would move it, so that the order of sessions changes nothing. It begins at 0, and is moved
    before it is used, as in the paper.
    """

    name = "rae"
    settings = RaeConfig
    about = About(
        "SPIRAL, arXiv:2506.24119",
        "R - b[environment, role], b a moving mean of R",
        "self-play, games with roles that win at different rates",
        "",
    )
    config: RaeConfig

    def __init__(self, config: AlgoConfig | None = None) -> None:
        super().__init__(config)
        self.baselines: dict[str, float] = {}

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        by_role: dict[str, list[Session]] = {}
        for sessions in ids_by_group(groups).values():
            for session in sessions:
                by_role.setdefault(role(session), []).append(session)
        for name, sessions in by_role.items():
            keep, before = self.config.baseline_decay ** len(sessions), self.baselines.get(name, 0.0)
            self.baselines[name] = keep * before + (1 - keep) * statistics.fmean(scores(sessions))
        credit = super().credit(groups)
        credit.metrics |= {f"policy/baseline/{name}": self.baselines[name] for name in by_role}
        return credit

    def judge(self, sessions: Sequence[Session]) -> Found:
        expected = [self.baselines[role(session)] for session in sessions]
        return relative_to(sessions, self.config, expected)

    def state(self) -> dict[str, Any]:
        return dict(self.baselines)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.baselines = dict(state)


def role(session: Session) -> str:
    """Return a session's baseline key: the environment, and the agent that the session is of.

    An agent that never moved may have been told something; one that was not is named at the end of the ids of session
    and group (`Session.by_agent`).
    """
    nodes = [node for node in session.nodes if node.sampled] or session.nodes
    if nodes:
        return f"{session.environment}/{nodes[0].agent}"
    _, slash, agent = session.group.rpartition("/")
    own = bool(slash) and session.id.endswith(f"/{agent}")
    return f"{session.environment}/{agent if own else AGENT}"

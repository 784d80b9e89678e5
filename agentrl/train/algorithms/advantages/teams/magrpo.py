"""Multi-agent group-relative policy optimisation: a team's joint turns compared with each other.

Liu et al., LLM Collaboration with Multi-Agent Reinforcement Learning (arXiv:2508.04652).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import PositiveInt

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Needs
from agentrl.train.algorithms.credit import Credit, NodeKey, trainable_nodes
from agentrl.train.algorithms.joint_turns import (
    Pairing,
    TeamBaseline,
    completion_advantages,
    joint_advantages,
    tree_of,
)
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found, credit_of
from agentrl.types import Group, Session
from agentrl.types.session import COMBINATIONS


class MagrpoConfig(UnclippedConfig):
    """Settings of `magrpo`."""

    gamma: Fraction = 0.9
    """Discount factor per joint turn."""
    baseline: TeamBaseline = "mean"
    """The baseline of a joint turn's return: the mean of its alternatives, the highest of them, or the mean of the
    others."""
    pairing: Pairing = "aligned"
    """The agents' completions that are played together: those of a session, or with `cross` every combination of a
    group's, in environments of one joint turn. A completion's advantage is then the sum over those that it is in."""
    max_joint_actions: PositiveInt = 64
    """The most combinations of a group that `cross` plays; a run with more is refused."""
    last_token: bool = True
    """Train a turn's last token too; the paper's code leaves it out."""
    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "constant"
    """The unit that the loss is averaged over; `constant` with `constant_tokens=1` is the paper's sum over a
    completion's tokens and mean over completions."""
    constant_tokens: PositiveInt = 1
    """The number by which `normalize=constant` divides a session's sum by."""


class Magrpo(PolicyGradient):
    """Discounted returns of joint turns less those of their alternatives; no clip, no scale, no KL.

    Each agent's turns are credited on their own path with the team's reward (`Env.teams`), so the k-th joint turn of a
    session is each agent's k-th turn: completions are paired as they were played (`aligned`), or in every combination.
    """

    name = "magrpo"
    settings = MagrpoConfig
    about = About(
        "MAGRPO, arXiv:2508.04652",
        "G - mean of the alternatives' G, G = r + gamma mean of what follows; by joint turn",
        "teams that share a reward",
    )
    group_size = 2
    config: MagrpoConfig

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        return credit_of(groups, self.config, self._judge)

    @property
    def needs(self) -> Needs:
        """The needs of the class, and with `pairing=cross` combinations."""
        return replace(super().needs, combinations=self.config.pairing == "cross")

    def _judge(self, sessions: Sequence[Session]) -> Found:
        root, places = tree_of(sessions)
        advantages = joint_advantages(root, self.config.gamma, self.config.baseline)
        crossed = self._combined_advantages(sessions) if self.config.pairing == "cross" else {}
        found: Found = {}
        for session in sessions:
            for node in trainable_nodes(session):
                place = places.get((session.id, node.id))
                if place is None:  # on no path that was rewarded
                    continue
                advantage = crossed.get(session.id, advantages[place])
                every = [advantage] * (len(node.token_ids) - 1)
                found[session.id, node.id] = [advantage if self.config.last_token else [*every, 0.0]]
        return found

    def _combined_advantages(self, sessions: Sequence[Session]) -> dict[str, float]:
        """The advantages of the sessions of one agent whose completions were combined with the others'."""
        found = {}
        for session in sessions:
            if (known := session.info.get(COMBINATIONS)) is None:
                continue
            agents, agent, count = known["agents"], session.main_agent, known["of"]
            returns = known["returns"][agent]
            each = completion_advantages(returns, len(agents), count, "cross", self.config.baseline)
            found[session.id] = each[agents.index(agent)][known["place"]]
        return found

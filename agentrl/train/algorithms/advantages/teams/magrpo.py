"""Multi-agent group-relative policy optimisation: a team's joint turns compared with each other.

Liu et al., LLM Collaboration with Multi-Agent Reinforcement Learning (arXiv:2508.04652).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import PositiveInt

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Needs
from agentrl.train.algorithms.credit import Credit, NodeKey, ids_by_group, trainable_nodes
from agentrl.train.algorithms.joint_turns import (
    Pairing,
    TeamBaseline,
    joint_advantages,
    joint_turns_of,
    path_advantages,
    path_weights,
    tree_of,
)
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found
from agentrl.types import Group, Node, Session
from agentrl.types.session import JOINT_PATH


class MagrpoConfig(UnclippedConfig):
    """Settings of `magrpo`."""

    only_with: ClassVar[Mapping[str, str]] = {"max_joint_actions": "tree or pairing=cross"}
    gamma: Fraction = 0.9
    """Discount factor per joint turn."""
    baseline: TeamBaseline = "mean"
    """The baseline of a joint turn's return: the mean of its alternatives, the highest of them, or the mean of the
    others."""
    pairing: Pairing = "aligned"
    """The completions of the agents that are played together: the k-th of each, or with `cross` every combination, each
    with joint turns of its own that follow. A completion's advantage is then the sum over those that it is in."""
    tree: bool = False
    """With `aligned`: whether every joint turn, and not the first alone, is followed by `rollout.group_size` joint
    turns; `cross` always has this."""
    max_joint_actions: PositiveInt = 64
    """The most joint actions from one state of a tree; a run with more is refused."""
    last_token: bool = True
    """Train a turn's last token too; the paper's code leaves it out."""
    normalize: Literal["rollout", "token", "turn", "group", "constant"] = "constant"
    """The unit that the loss is averaged over; `constant` with `constant_tokens=1` is the paper's sum over a
    completion's tokens and mean over completions."""
    constant_tokens: PositiveInt = 1
    """The number by which `normalize=constant` divides a session's sum."""

    @property
    def grows(self) -> bool:
        """Return whether a group is a tree of joint turns."""
        return self.tree or self.pairing == "cross"


class Magrpo(PolicyGradient):
    """Discounted returns of joint turns less those of their alternatives; no clip, no scale, no KL.

    Each agent's turns are credited on their own path with the team's reward (`Env.teams`), so the k-th joint turn of a
    session is each agent's k-th turn. Where a group is a tree (`agentrl.rollout.episodes.combinations`), a turn that
    several sessions have has one advantage in all of them, and so in the loss the mean over its state's completions.
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
        return _weigh_paths(super().credit(groups), groups)

    @property
    def needs(self) -> Needs:
        """The needs of the class, and with `pairing=cross` or `tree` a tree of joint turns."""
        return replace(super().needs, combinations=self.config.grows)

    def judge(self, sessions: Sequence[Session]) -> Found:
        found: Found = {}
        for session, node, advantage in self._advantages(sessions):
            every = [advantage] * (len(node.token_ids) - 1)
            found[session, node.id] = [advantage if self.config.last_token else [*every, 0.0]]
        return found

    def _advantages(self, sessions: Sequence[Session]) -> Iterator[tuple[str, Node, float]]:
        """Each trainable turn's advantage, of the sessions of one agent in a group."""
        gamma, baseline = self.config.gamma, self.config.baseline
        known = next((each.info[JOINT_PATH] for each in sessions if JOINT_PATH in each.info), None)
        if known is None:
            root, places = tree_of(sessions)
            advantages = joint_advantages(root, gamma, baseline)
            for session in sessions:
                for node in trainable_nodes(session):
                    if (place := places.get((session.id, node.id))) is not None:  # on a path that was rewarded
                        yield session.id, node, advantages[place]
            return
        agents = known["agents"]
        played = {session.id: joint_turns_of(session, len(agents)) for session in sessions}
        paths = {name: (each.path, each.rewards) for name, each in played.items()}
        found = path_advantages(paths, agents.index(sessions[0].main_agent), gamma, baseline)
        for session in sessions:
            for node in trainable_nodes(session):
                yield session.id, node, found[session.id][played[session.id].places[node.id]]


def _weigh_paths(credit: Credit, groups: Sequence[Group]) -> Credit:
    """The credit in which groups weigh alike, where they are trees, and in each the joint actions of a state."""
    scored = {group: members for group, members in ids_by_group(groups).items() if members}
    trees = [each.info[JOINT_PATH] for members in scored.values() for each in members if JOINT_PATH in each.info]
    if not trees:
        return credit
    count, factors = len(trees[0]["agents"]), dict[str, float]()
    every = sum(map(len, scored.values()))
    for members in scored.values():
        weights = path_weights({session.id: joint_turns_of(session, count).path for session in members})
        factors |= {name: weight * every / len(scored) for name, weight in weights.items()}
    shares = {
        (session, node): tuple(replace(share, weight=share.weight * factors[session]) for share in each)
        for (session, node), each in credit.shares.items()
    }
    return replace(credit, shares=shares, counts=dict.fromkeys(scored, 1.0))

"""Joint paths: what all agents of a session were told and said, in one path, for a critic that reads all of it.

An agent acts on its own path. With `algo.value_path=joint` its critic reads this one (MAPPO, arXiv:2103.01955; MAAC,
arXiv:2601.21972). It has the session's nodes in order, but where several agents are told something, or speak, without
anything in between: there the agent's own messages come last and its own turn first. So the value before a turn knows
what every agent was told until then, and none of the turns of the same joint turn. Who the agent is follows from whose
message stands directly before the turn.

Only the agent's own turns are trained on the path: the critic learns their values there, and the policy learns nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentrl.attachments import critic_view, images
from agentrl.train.algorithms.credit import Credit, NodeKey, Values
from agentrl.train.driver.minibatches import updates_of
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.types import Group, Node, Session

if TYPE_CHECKING:
    from agentrl.train.algorithms import Algorithm

READ = (critic_view.NAME, images.NAME)
"""Attachments that a critic reads; others say how an engine computed the tokens on another path."""


@dataclass(frozen=True)
class JointPaths:
    """The joint paths of a batch.

    Attributes:
        groups: the batch's groups by agent, of which each session is its agent's joint path.
        places: the ids that an agent's nodes have on its joint path, by session and their id in the agent's own view.
    """

    groups: list[Group]
    places: Mapping[NodeKey, int]

    @classmethod
    def of(cls, groups: Sequence[Group], views: Sequence[Group]) -> JointPaths:
        """Return the joint paths of a batch.

        Args:
            groups: the batch's, with whole sessions.
            views: the same by agent (`Group.by_agent`).
        """
        whole = {view.id: each for group in groups for each in group.sessions for view in each.by_agent()}
        places: dict[NodeKey, int] = {}
        found = []
        for group in views:
            sessions = []
            for view in group.sessions:
                session, own = join_agents(whole[view.id], view)
                places |= {(view.id, node): place for node, place in own.items()}
                sessions.append(session)
            found.append(replace(group, sessions=sessions))
        return cls(found, places)

    def values_by_view(self, values: Values) -> Values:
        """Return values of joint paths' nodes by the agents' own nodes."""
        return {(s, n): values[s, place] for (s, n), place in self.places.items() if (s, place) in values}

    def pack(
        self, algorithm: Algorithm, views: Sequence[Group], credit: Credit, token_budget: int, seed: int
    ) -> list[Forest]:
        """Return the forests that a step's critic learns from, of the same updates as the policy's.

        Args:
            algorithm: whose critic it is.
            views: the batch by agent.
            credit: of these, with the critic's targets.
            token_budget: tokens of one forest.
            seed: see `pack`.
        """
        config, shares = algorithm.critic_config, {}
        for (session, node), each in credit.shares.items():
            shares[session, self.places[session, node]] = each
        updates = updates_of(views, credit, config, seed) if config.minibatches > 1 else None
        return pack(self.groups, Credit(shares), token_budget, seed=seed, view=config.value_view, updates=updates)


def join_agents(session: Session, view: Session) -> tuple[Session, dict[int, int]]:
    """Return an agent's joint path as a session, and the ids that its own nodes have there, by their ids in its view.

    Args:
        session: of all agents.
        view: one agent's (`Session.by_agent`), whose id and rewards the path has; or the session itself, of which all
            turns are then the agent's.
    """
    agent = None if view.id == session.id else view.id.removeprefix(f"{session.id}/")

    def is_own(node: Node) -> bool:
        return agent is None or node.agent == agent or node.agent.startswith(f"{agent}/")

    left_out, ends = session.uncredited(), session.partly_used()
    own_ids = {node.id: place for place, node in enumerate(filter(is_own, session.nodes))}
    order: list[Node] = []
    said = (node for node in session.nodes if node.copy_of is None and node.id not in left_out)
    for spoken, run in itertools.groupby(said, key=lambda node: node.message.role == "assistant"):
        order += sorted(run, key=lambda node: is_own(node) != spoken)
    nodes = []
    for place, node in enumerate(order):
        used = [is_own(node) and on and at < ends.get(node.id, at + 1) for at, on in enumerate(node.trainable)]
        reward = node.reward if is_own(node) else None
        kept = {name: data for name, data in node.attachments.items() if name in READ}
        above = place - 1 if place else None
        nodes.append(replace(node, id=place, parent=above, trainable=used, reward=reward, attachments=kept))
    path = replace(view, nodes=nodes, branches=[], excluded=[])
    return path, {own_ids[node.id]: place for place, node in enumerate(order) if is_own(node)}

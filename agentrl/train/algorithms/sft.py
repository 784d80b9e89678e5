"""Supervised learning on demonstrations, on the same forests: the negative log-likelihood of what an expert wrote.

It trains what is trainable and no engine sampled, whatever the session's reward: who calls it chose the
demonstrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.base import Algorithm
from agentrl.train.algorithms.rloo import loss
from agentrl.train.credit import Advantage, Credit, NodeKey, trainable_nodes, weigh
from agentrl.types import Group, Session


def credit(
    groups: Sequence[Group], config: AlgoConfig, values: Mapping[NodeKey, Sequence[float]] | None = None
) -> Credit:
    """Advantage 1 for every demonstrated token."""
    sessions: dict[str, list[Session]] = {}
    advantages: dict[NodeKey, Sequence[Advantage]] = {}
    for group in groups:
        for session in group.sessions:
            if nodes := trainable_nodes(session, demonstrated=True):
                sessions.setdefault(group.id, []).append(session)
                advantages.update(((session.id, node.id), (1.0,)) for node in nodes)
    return Credit(weigh(sessions, advantages, config), {"groups/trained": float(len(sessions))})


ALGORITHM = Algorithm("sft", credit, loss, policy=False)

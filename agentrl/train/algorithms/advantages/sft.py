"""Supervised learning on demonstrations, on the same forests: the negative log-likelihood of what an expert wrote.

It trains what is trainable and no engine sampled, whatever the session's reward: the caller chose the
demonstrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.base import Algorithm, Needs
from agentrl.train.algorithms.credit import Advantage, Credit, NodeKey, trainable_nodes, weigh
from agentrl.types import Group, Session

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.algorithms.tokens import Tokens


class Sft(Algorithm):
    """Supervised fine-tuning."""

    name = "sft"
    about = About("", "1, on demonstrations; the loss is -log π", "warm starts", "TRL: SFTTrainer")

    @property
    def needs(self) -> Needs:
        return Needs(engine=False)

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        sessions: dict[str, list[Session]] = {}
        advantages: dict[NodeKey, Sequence[Advantage]] = {}
        for group in groups:
            for session in group.sessions:
                if nodes := trainable_nodes(session, demonstrated=True):
                    sessions.setdefault(group.id, []).append(session)
                    advantages.update(((session.id, node.id), (1.0,)) for node in nodes)
        return Credit(weigh(sessions, advantages, self.config), {"groups/trained": float(len(sessions))})

    def loss(self, tokens: Tokens) -> Tensor:
        return -tokens.logp * tokens.advantage

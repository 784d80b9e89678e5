"""On-policy RL with the optimal reward baseline (Hao et al., arXiv:2505.23585): rewards weighted by lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.credit import trainable_nodes, trained_tokens
from agentrl.train.algorithms.policy_gradient import PolicyGradient, UnclippedConfig
from agentrl.train.algorithms.returns import Found, Rows, by_turn, means
from agentrl.types import Session


class Opo(PolicyGradient):
    """The baseline that minimises the gradient's variance, if a token's squared gradient is the same everywhere."""

    name = "opo"
    settings = UnclippedConfig
    about = About(
        "OPO, arXiv:2505.23585",
        "R - Σ l R / Σ l over the group, l: trained tokens of a session",
        "one update for each batch; sessions of very different lengths",
        "verl: opo",
    )
    group_size = 2
    whole_sessions = True

    def judge(self, sessions: Sequence[Session]) -> Found:
        lengths = [_length(session) for session in sessions]

        def baseline(returns: Sequence[Rows]) -> list[list[float]]:
            own, total = [means(rows) for rows in returns], sum(lengths)
            if not total:
                return own
            column = [
                math.fsum(n * x for n, x in zip(lengths, each, strict=True)) / total for each in zip(*own, strict=True)
            ]
            return [column] * len(own)

        if len(sessions) < 2:
            return by_turn(sessions, "mean")
        return by_turn(sessions, baseline)


def _length(session: Session) -> int:
    ends = session.partly_used()
    return sum(trained_tokens(node, ends.get(node.id)) for node in trainable_nodes(session))

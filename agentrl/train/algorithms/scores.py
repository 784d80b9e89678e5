"""The targets of score models: the one of each token whose score is read, and pairs of paths.

A path's score is read at its last token, a step's at the last token of its separator. Sessions that are read for this
have these tokens alone as trainable ones (`rollout.sources.judged`), so that credit, packing and checks treat them as
any others. A path's target is its session's score, a step's is the reward of its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentrl.errors import InvalidInput
from agentrl.rollout.sources.judged import MARGIN, PAIR
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, NodeKey, Pair, trainable_nodes
from agentrl.train.algorithms.fields import ForestField
from agentrl.train.algorithms.pairs import sequence_keys
from agentrl.types import Group, Node, Session
from agentrl.types.session import outcome


def _score(session: Session, node: Node) -> float:
    """The score of a session; of one with forks, that of the path to the node."""
    if not session.branches:
        return session.score or 0.0
    total, at = outcome(session, node.id), node
    while True:
        total += session.original(at).reward or 0.0
        if at.parent is None:
            return total
        at = session.nodes[at.parent]


def _label(session: Session, node: Node) -> float:
    return node.reward or 0.0


def _margin(session: Session, node: Node) -> float:
    return float(session.info.get(MARGIN) or 0.0)


TARGET = ForestField("target", _score, scope="node", apart=True)
"""The score, or the number of the class, that the end of a path is to have."""
STEP_TARGET = ForestField(TARGET.name, _label, scope="node", apart=True)
"""The number of the class that the end of a step is to have."""
MARGINS = ForestField("margin", _margin, scope="session", apart=True)
"""By how much the better side of a pair is to win."""


def pairs_of_rows(groups: Mapping[str, Sequence[Session]]) -> list[Pair]:
    """The pairs that sessions are sides of (`Session.info`), all of the same weight; their weights add up to 1.

    Raises:
        InvalidInput: a pair has not one better and one worse side.
    """
    sides: dict[tuple[str, int], dict[bool, NodeKey]] = {}
    for group, sessions in groups.items():
        for session in sessions:
            if (number := session.info.get(PAIR)) is not None and (keys := sequence_keys(session, "session")):
                sides.setdefault((group, int(number)), {})[bool(session.reward)] = keys[0]
    if lacking := [name for name, each in sides.items() if len(each) != 2]:
        raise InvalidInput(f"pair {lacking[0][1]} of group {lacking[0][0]!r} has not one better and one worse side")
    return [Pair(each[True], each[False], 1 / len(sides)) for each in sides.values()]


def target_credit(groups: Iterable[Group]) -> Credit:
    """Credit that weighs every token whose score is read the same; weights add up to 1.

    A session without a score, and without rewards of its steps, has no target and no credit.
    """
    found: dict[NodeKey, int] = {}
    counts: dict[str, float] = {}
    for group in groups:
        for session in group.scored:
            nodes = trainable_nodes(session, demonstrated=True)
            found |= {(session.id, node.id): sum(node.trainable) for node in nodes}
            counts[group.id] = counts.get(group.id, 0.0) + sum(sum(node.trainable) for node in nodes)
    total = sum(found.values())
    shares: dict[NodeKey, tuple[NodeAdvantage, ...]] = {key: (NodeAdvantage(1.0, 1 / total),) for key in found}
    metrics = {"groups/trained": float(sum(map(bool, counts.values()))), "scores/targets": float(total)}
    return Credit(shares, metrics, counts=counts)

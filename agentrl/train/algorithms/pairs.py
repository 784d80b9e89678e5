"""Credit for losses over pairs of sequences (DPO and its kin)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.credit import (
    Credit,
    NodeAdvantage,
    NodeKey,
    Pair,
    SequenceKind,
    trainable_nodes,
    trained_tokens,
)
from agentrl.train.algorithms.sequences import sequences_of
from agentrl.types import Session


def sequence_keys(session: Session, kind: SequenceKind) -> list[NodeKey]:
    """Return the names of a session's sequences with trainable tokens in a `Pair`."""
    return [(session.id, last) for last in sequences_of(session, kind, [node.id for node in trainable_nodes(session)])]


def pair_credit(sessions: Iterable[Session], pairs: Sequence[Pair], kind: SequenceKind) -> Credit:
    """Credit that trains the pairs' sequences and nothing else.

    A token's advantage is 1 in a chosen sequence and -1 in a rejected one, and a pair's weight is spread evenly over
    the tokens of each of its sequences.

    Args:
        sessions: those that the pairs name.
        pairs: in any order.
        kind: what a sequence is.

    Raises:
        InvalidInput: a pair names what is no sequence with trainable tokens.
    """
    found: dict[NodeKey, list[tuple[NodeKey, int]]] = {}
    for session in sessions:
        ends = session.partly_used()
        for last, nodes in sequences_of(session, kind, [node.id for node in trainable_nodes(session)]).items():
            found[session.id, last] = [
                ((session.id, node), trained_tokens(session.nodes[node], ends.get(node) if copied is None else copied))
                for node, copied in nodes
            ]
    shares: dict[NodeKey, list[NodeAdvantage]] = {}
    for pair in pairs:
        for key, advantage in ((pair.chosen, 1.0), (pair.rejected, -1.0)):
            if key not in found:
                raise InvalidInput(f"a pair names node {key[1]} of session {key[0]!r}, where no {kind} ends")
            length = sum(tokens for _, tokens in found[key])
            for node, tokens in found[key]:
                if tokens:
                    shares.setdefault(node, []).append(NodeAdvantage(advantage, pair.weight / length))
    return Credit({node: tuple(each) for node, each in shares.items()}, pairs=pairs)

"""Credit for losses over pairs of sequences (DPO and its kin), and pairs from what a group's sessions scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.credit import (
    Credit,
    Label,
    NodeAdvantage,
    NodeKey,
    Pair,
    SequenceKind,
    trainable_nodes,
    trained_tokens,
)
from agentrl.train.algorithms.sequences import sequences_of, sides_of
from agentrl.types import Group, Node, Session, Status
from agentrl.types.branches import list_untrained
from agentrl.types.session import outcome

Pairing = Literal["best_worst", "all"]
"""The pairs of a group: the best of what is compared with the worst, or any two of different rewards."""


def compared_nodes(session: Session) -> list[Node]:
    """Return a session's nodes whose tokens pairs and labels compare: those sampled, else those demonstrated."""
    return trainable_nodes(session) or trainable_nodes(session, demonstrated=True)


def sequence_keys(session: Session, kind: SequenceKind) -> list[NodeKey]:
    """Return the names of a session's sequences with trainable tokens in a `Pair`."""
    return [(session.id, last) for last in sequences_of(session, kind, [node.id for node in compared_nodes(session)])]


def pair_credit(sessions: Iterable[Session], pairs: Sequence[Pair], kind: SequenceKind) -> Credit:
    """Credit that trains the pairs' sequences and nothing else.

    A token's advantage is 1 in a chosen sequence and -1 in a rejected one, and a pair's weight is spread evenly over
    the tokens of each of its sequences.

    Raises:
        InvalidInput: a pair names what is no sequence with trainable tokens.
    """
    credit = Credit(pairs=pairs)
    credit.shares = spread(sessions, sides_of(credit), kind)
    return credit


def spread(
    sessions: Iterable[Session], labels: Sequence[Label], kind: SequenceKind
) -> dict[NodeKey, tuple[NodeAdvantage, ...]]:
    """Return shares that spread each label's weight evenly over its sequence's tokens, the verdict their advantage."""
    found: dict[NodeKey, list[tuple[NodeKey, int]]] = {}
    for session in sessions:
        ends = session.partly_used()
        for last, nodes in sequences_of(session, kind, [node.id for node in compared_nodes(session)]).items():
            found[session.id, last] = [
                ((session.id, node), trained_tokens(session.nodes[node], ends.get(node) if copied is None else copied))
                for node, copied in nodes
            ]
    shares: dict[NodeKey, list[NodeAdvantage]] = {}
    for label in labels:
        if label.sequence not in found:
            session_id, last = label.sequence
            raise InvalidInput(f"a pair or label names node {last} of session {session_id!r}, where no {kind} ends")
        length = sum(tokens for _, tokens in found[label.sequence])
        for node, tokens in found[label.sequence]:
            if tokens:
                shares.setdefault(node, []).append(NodeAdvantage(float(label.verdict), label.weight / length))
    return {node: tuple(each) for node, each in shares.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Scored:
    """Sequences that were rewarded together: those of a session, or of one branch of a session with forks."""

    reward: float
    sequences: tuple[NodeKey, ...]


def scored_sequences(session: Session, kind: SequenceKind) -> Iterator[Scored]:
    """Return the sequences of a session that are compared, with its reward, step rewards included.

    A session without forks is compared as a whole. Each path of one with forks has a reward of its own, so that paths
    of one conversation may be chosen and rejected; turns that several of them share stay out where turns are compared.
    """
    keys = sequence_keys(session, kind)
    if not session.branches:
        if keys and session.score is not None:
            yield Scored(session.score, tuple(keys))
        return
    paths = list(session.stored_paths())
    through: dict[int, list[int]] = {}
    for path in paths:
        for node in path:
            through.setdefault(session.original(node).id, []).append(path[-1].id)
    left_out = list_untrained(session)
    for path in paths:
        leaf = path[-1].id
        own = tuple(key for key in keys if through.get(key[1], [key[1]]) == [leaf])
        if own and leaf not in left_out:
            yield Scored(outcome(session, leaf) + sum(session.original(node).reward or 0.0 for node in path), own)


def pairs_of_groups(
    groups: Mapping[str, Sequence[Session]], kind: SequenceKind, pairing: Pairing, min_gap: float = 0.0
) -> list[Pair]:
    """Pairs within each group, by reward; the weights of a group's pairs add up to 1 over the number of groups.

    Groups without a pair count as well: how much one group weighs must not depend on how its neighbours fared.

    Args:
        groups: scored sessions by group id.
        kind: what a sequence is.
        pairing: which are compared; of equal rewards the first session's counts as the best, or the worst.
        min_gap: rewards that differ by no more than this make no pair.
    """
    found: list[Pair] = []
    for sessions in groups.values():
        scored = [each for session in sessions for each in scored_sequences(session, kind)]
        if not scored:
            continue
        candidates = product(scored, scored)
        if pairing == "best_worst":
            best, worst = (pick(scored, key=lambda each: each.reward) for pick in (max, min))
            candidates = product([best], [worst])
        keys = [
            each
            for better, worse in candidates
            if better.reward - worse.reward > min_gap
            for each in product(better.sequences, worse.sequences)
        ]
        found += [Pair(*each, weight=1 / (len(groups) * len(keys))) for each in keys]
    return found


def preference_group(name: str, chosen: Session, rejected: Session, *, number: int = 0) -> Group:
    """Return a group of two sessions of the same prompt, the first of which is preferred: rewards of 1 and 0.

    Neither session is changed. Their common prefix is computed once; their trainable tokens may be sampled, or
    demonstrated (from a file). What `algo=dpo` and its kin make of the group is one pair, what `algo=kto` makes of it
    a desirable and an undesirable sequence.

    Raises:
        InvalidInput: one of them has no token to train.
    """
    members = []
    for place, (reward, session) in enumerate(((1.0, chosen), (0.0, rejected))):
        if not compared_nodes(session):
            raise InvalidInput(f"pair {name!r}: the {('chosen', 'rejected')[place]} session has no token to train")
        own = dataclasses.replace(session, group=name, sample=place, status=Status.COMPLETED, branches=[])
        own.reward, own.rewards = reward, {"preferred": reward}
        members.append(own)
    return Group(name, chosen.task, members, number=number)

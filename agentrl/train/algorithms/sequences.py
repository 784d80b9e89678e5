"""The sequences of a batch's trained tokens, for terms that are functions of a whole sequence.

A sequence is a turn (the trained tokens of one node) or a path: the trained tokens from a root to a leaf, one sequence
for each leaf, so that a session with several branches or several roots has several. On a path a copy of a turn
(`Node.copy_of`) counts as the turn itself, or as its first tokens (`Node.copied_tokens`),
as in `agentrl.train.algorithms.returns`.

A token below which a tree branches belongs to several paths. So a forest lists (token, sequence) pairs, and every pair
has a weight and an advantage of its own: the weights of a token's pairs add up to the token's. Where a session's credit
has one node advantage for each path through a node, each path has its own; otherwise all have their mean.

For a sequence-level term the trainer sums log-ratios over all forests and ranks (S, one number for each sequence), and
`Tokens.sequence_log_ratio` then stands for S at each pair, with this gradient:

    sum over pairs of weight · f(sequence_log_ratio)  =  sum over sequences of W · f(S)      W: its pairs' weights
    its derivative by a token's log-probability       =  sum over the token's sequences of W · f'(S)

Both are exact however the batch is split, since S is complete before any gradient is computed.

Where credit has pairs of sequences (`Credit.pairs`), the batch's sequences are the sides of these: 2i is the chosen one
of pair i and 2i + 1 the rejected one, so a sequence of several pairs is listed for each of them. A side's tokens weigh
the pair's weight in all, in equal parts, and have advantage 1 or -1. Where credit has labels (`Credit.labels`),
sequence i is that of label i, likewise, and its advantage is the verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.credit import Credit, Label, NodeAdvantage, NodeKey, SequenceKind
from agentrl.train.forest.trie import STAMP_SHIFT, Segment
from agentrl.types import Session
from agentrl.types.branches import list_untrained
from agentrl.types.session import path_weights


@dataclass(frozen=True, slots=True)
class Sequences:
    """A forest's (token, sequence) pairs, Q of them, and what is known of the batch's N sequences.

    Attributes:
        token: int64 [Q], the token's index in the forest; in `Rows` the row's.
        sequence: int64 [Q], the sequence's number in the batch.
        weight: float32 [Q], the part of the token's weight that belongs to this sequence; above 0.
        advantage: float32 [Q].
        length: float32 [N], trained tokens of each sequence, over all forests.
        total: float32 [N], the weights of its pairs, added up.
        mean_advantage: float32 [N], their advantages' mean by weight.
        partner: int64 [N], the other sequence of each one's pair; None without pairs.
        turn: int64 [Q], where sequences are sessions' paths: the number of the token's turn. Turns are numbered behind
            the paths, so that N counts both, and `length` is known of both.
        turn_share: float64 [Q], 1 over the number of the turn's paths that the token is on: what a turn sums over its
            pairs counts each token once.
    """

    token: Tensor
    sequence: Tensor
    weight: Tensor
    advantage: Tensor
    length: Tensor
    total: Tensor
    mean_advantage: Tensor
    partner: Tensor | None = None
    turn: Tensor | None = None
    turn_share: Tensor | None = None

    def __len__(self) -> int:
        return int(self.token.numel())

    def moved(self, place: Tensor) -> Sequences:
        """The pairs whose token has a place, at that place.

        Args:
            place: the new index of each old one, -1 for those that are left out.
        """
        token = place.to(self.token.device)[self.token]
        keep = token >= 0
        names = ("sequence", "weight", "advantage", "turn", "turn_share")
        pairs = {name: each[keep] for name in names if (each := getattr(self, name)) is not None}
        return dataclasses.replace(self, token=token[keep], **pairs)

    def to(self, device: torch.device | str) -> Sequences:
        """Return the sequences on a device."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Sequences(**{name: tensor.to(device) for name, tensor in fields.items() if tensor is not None})


def sequences_of(
    session: Session, kind: SequenceKind, trained: Collection[int]
) -> dict[int, list[tuple[int, int | None]]]:
    """A session's sequences by their last node.

    Returns:
        For each its trained nodes, and how many of a node's first tokens belong to it (None: all). A node that is on no
        path is a sequence by itself.
    """
    found: dict[int, list[tuple[int, int | None]]] = {}
    if kind == "session" and trained:
        for path in session.stored_paths():
            nodes = [(session.original(node).id, node.copied_tokens) for node in path]
            if nodes := [each for each in nodes if each[0] in trained]:
                found[path[-1].id] = nodes
    on_paths = {node for nodes in found.values() for node, _ in nodes}
    return found | {node: [(node, None)] for node in trained if node not in on_paths}


@dataclass(frozen=True, slots=True)
class Through:
    """A sequence through a node: its number, and how many of the node's first tokens it goes through (None: all).

    `weight`: its part of the node's weight is proportional to this; in a session with forks the path's weight.
    """

    sequence: int
    end: int | None = None
    weight: float = 1.0


def sides_of(credit: Credit) -> list[Label]:
    """Return a credit's labels, or both sides of its pairs as such, the chosen one first."""
    sides = list(credit.labels or ())
    for pair in credit.pairs or ():
        sides += [Label(pair.chosen, 1, pair.weight), Label(pair.rejected, -1, pair.weight)]
    return sides


class SequenceIndex:
    """Numbers the sequences of a batch, and finds the pairs of its forests.

    Attributes:
        through: the sequences through each node with an advantage.
        turns: the number of each node's turn, where sequences are sessions' paths; behind theirs.
        count: how many sequences and turns there are.
    """

    def __init__(self, sessions: Sequence[Session], credit: Credit, kind: SequenceKind) -> None:
        self.through: dict[NodeKey, list[Through]] = {}
        self.names = [session.id for session in sessions]
        self.sides = None if credit.pairs is None and credit.labels is None else sides_of(credit)
        self.paired = credit.pairs is not None
        numbers: dict[NodeKey, int] = {}
        for session in sessions:
            credited = [node.id for node in session.nodes if credit.shares.get((session.id, node.id))]
            parts: dict[int, float] = {}
            if session.branches and kind == "session":
                left_out = list_untrained(session)
                parts = {leaf: part for leaf, part in path_weights(session).items() if leaf not in left_out}
            for last, nodes in sequences_of(session, kind, credited).items():
                number = numbers.setdefault((session.id, last), len(numbers))
                for node, copied in nodes:
                    through = Through(number, copied, parts.get(last, 0.0) if parts else 1.0)
                    self.through.setdefault((session.id, node), []).append(through)
        self.count = len(numbers)
        self.turns: dict[NodeKey, int] = {}
        if self.sides is not None:
            self._number_sides(self.sides, numbers)
        elif kind == "session":
            self.turns = {node: self.count + i for i, node in enumerate(self.through)}
            self.count += len(self.turns)

    def _number_sides(self, sides: Sequence[Label], numbers: dict[NodeKey, int]) -> None:
        """Replace each sequence by the sides of pairs, or the labels, that it has."""
        by_number: dict[int, list[int]] = {}
        for index, side in enumerate(sides):
            what = f"pair {index // 2}" if self.paired else f"label {index}"
            if not side.weight > 0:
                raise InvalidInput(f"{what} has weight {side.weight}: it must be above 0")
            if side.sequence not in numbers:
                session, node = side.sequence
                raise InvalidInput(f"{what}: no trained sequence ends at node {node} of session {session!r}")
            by_number.setdefault(numbers[side.sequence], []).append(index)
        for node_key, through in self.through.items():
            self.through[node_key] = [
                replace(each, sequence=side) for each in through for side in by_number.get(each.sequence, ())
            ]
        self.count = len(sides)

    def pairs(self, forests: Sequence[Sequence[tuple[Segment, int, int]]]) -> list[Sequences]:
        """The pairs of each forest."""
        found = [self._of_forest(segments) for segments in forests]
        length, total, advantage = (np.zeros(self.count) for _ in range(3))
        for pairs in found:
            np.add.at(length, pairs.sequence, 1.0)
            if self.turns:
                np.add.at(length, pairs.turn, pairs.turn_share)
        length, partner = np.rint(length), None
        if self.sides is not None:
            found = [self._by_side(self.sides, pairs, length) for pairs in found]
            partner = torch.arange(self.count) ^ 1 if self.paired else None
        for pairs in found:
            np.add.at(total, pairs.sequence, pairs.weight)
            np.add.at(advantage, pairs.sequence, pairs.weight * pairs.advantage)
        mean = np.divide(advantage, total, out=np.zeros(self.count), where=total > 0)
        table = (_floats(length), _floats(total), _floats(mean), partner)
        return [
            Sequences(
                torch.from_numpy(pairs.token),
                torch.from_numpy(pairs.sequence),
                _floats(pairs.weight),
                _floats(pairs.advantage),
                *table,
                turn=torch.from_numpy(pairs.turn) if self.turns else None,
                turn_share=torch.from_numpy(pairs.turn_share) if self.turns else None,
            )
            for pairs in found
        ]

    @staticmethod
    def _by_side(sides: Sequence[Label], pairs: Pairs, length: NDArray[np.float64]) -> Pairs:
        """A forest's tokens with the weights and verdicts of the sides that they belong to."""
        weights = np.array([side.weight for side in sides]) / length
        verdicts = np.array([float(side.verdict) for side in sides])
        return pairs._replace(weight=weights[pairs.sequence], advantage=verdicts[pairs.sequence])

    def _of_forest(self, segments: Sequence[tuple[Segment, int, int]]) -> Pairs:
        """Each pair whose weight is above 0."""
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        parts: list[Pairs] = [Pairs(whole, whole, real, real, whole, real)]
        for segment, length, at in segments:
            trained = np.flatnonzero((segment.key[:length] >> STAMP_SHIFT) > 0)
            for owner in segment.owners:
                if owner.shares:
                    node = self.names[owner.session], owner.node.id
                    turn = self.turns.get(node, -1)
                    parts += _of_owner(self.through[node], turn, owner.shares, trained + owner.start, trained + at)
        together = [np.concatenate(each) for each in zip(*parts, strict=True)]
        keep = together[2] > 0
        return Pairs._make(each[keep] for each in together)


class Pairs(NamedTuple):
    """Some (token, sequence) pairs; see `Sequences`."""

    token: NDArray[np.int64]
    sequence: NDArray[np.int64]
    weight: NDArray[np.float64]
    advantage: NDArray[np.float64]
    turn: NDArray[np.int64]
    turn_share: NDArray[np.float64]


def _of_owner(
    through: Sequence[Through],
    turn: int,
    shares: Sequence[NodeAdvantage],
    place: NDArray[np.int64],
    token: NDArray[np.int64],
) -> Iterator[Pairs]:
    """The pairs of an owner's tokens in a segment, for each sequence."""
    inside = [place < (np.inf if each.end is None else each.end) for each in through]
    weights = np.array([share.weight for share in shares])
    advantages = np.stack([_at(share, place) for share in shares])
    if len(shares) == len(through) and all(each.end is None for each in through):
        parts = [(np.full(len(place), weight), own) for weight, own in zip(weights, advantages, strict=True)]
    else:
        total = np.sum([within * each.weight for within, each in zip(inside, through, strict=True)], axis=0)
        one = weights.sum() / np.where(total > 0, total, 1)
        parts = [(one * each.weight, weights @ advantages / weights.sum()) for each in through]
    counted = [within & (weight > 0) for within, (weight, _) in zip(inside, parts, strict=True)]
    turn_share = 1 / np.maximum(np.sum(counted, axis=0), 1)
    for each, within, (weight, advantage) in zip(through, inside, parts, strict=True):
        number, turns = (np.full(int(within.sum()), n, dtype=np.int64) for n in (each.sequence, turn))
        yield Pairs(token[within], number, weight[within], advantage[within], turns, turn_share[within])


def _at(share: NodeAdvantage, place: NDArray[np.int64]) -> NDArray[np.float64]:
    advantage = np.asarray(share.advantage, dtype=np.float64)
    return advantage[place] if advantage.ndim else np.full(len(place), float(advantage))


def _floats(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))

"""Merging the sessions of a group into one tree of segments, so that what they share is computed once.

A group's sessions begin with the same prompt, sibling branches with the same history, and samples often with
the same first words. All of that is one rule: tokens are merged as long as they are equal *and* mean the
same to the trainer. A sampled token has a stamp (`Stamp`), and is merged only with one of the same stamp; its credit is
then the sum over its owners. Segments split where paths part (a radix tree), and never span two nodes of a session. A
node that begins with another's sampled tokens (`Node.copied_tokens`) owns those without any credit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.attachments import critic_view, images, support
from agentrl.errors import InvalidInput
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.algorithms.fields import FieldValues
from agentrl.train.forest.pictures import Pictures
from agentrl.types import Node, Sampling, Session

STAMP_SHIFT = 32
ID_MASK = (1 << STAMP_SHIFT) - 1
"""A key is the token id in the low half, and in the high half the stamp's number (0: untrained)."""


class Stamp(NamedTuple):
    """The conditions that a token was sampled under, which are those of its credit."""

    temperature: float = 1.0
    version: int = -1
    """The policy's version; -1 where no engine sampled it."""
    view: tuple[float, ...] = ()
    """A centralised critic's input besides the path; empty where there is none."""
    apart: tuple[bytes, ...] = ()
    """The values of the declared fields that are computed apart (`ForestField.apart`), and what the token was drawn
    from where that was not the whole vocabulary."""


Keys = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Owner:
    """A session's node that holds a segment's tokens, from `start` of the node's own on."""

    session: int
    node: Node
    shares: tuple[NodeAdvantage, ...]
    start: int


@dataclass(slots=True, eq=False)
class Segment:
    """A run of tokens without a branch, and who owns them; children by their first key, in order of arrival."""

    key: Keys
    owners: list[_Owner]
    children: dict[int, Segment] = field(default_factory=dict)

    @property
    def trained(self) -> int:
        """One past the last trained token, 0 where there is none."""
        stamped = np.flatnonzero(self.key >> STAMP_SHIFT)
        return int(stamped[-1]) + 1 if stamped.size else 0


class Stamps:
    """Numbers for stamps, from 1 on, in order of first occurrence.

    Args:
        view: how many numbers of the turns' `critic_view` are part of their stamps.
        declared: the values of declared fields.
    """

    def __init__(self, view: int = 0, declared: FieldValues | None = None) -> None:
        self.known: dict[Stamp, int] = {}
        self._numbered: list[Stamp] = []
        self.view, self.declared = view, declared or FieldValues(())
        self.pictures = Pictures()

    def view_of(self, node: Node) -> tuple[float, ...]:
        """Return the critic's input before a turn; zeros where nothing was recorded, as for a sub-agent.

        Raises:
            InvalidInput: the environment gave another count of numbers.
        """
        data = node.attachments.get(critic_view.NAME) if self.view else None
        found = (0.0,) * self.view if data is None else critic_view.unpack(data)
        if len(found) != self.view:
            raise InvalidInput(
                f"algo.value_view = {self.view}: the environment's critic_view gave {len(found)} numbers"
            )
        return found

    def number(self, stamp: Stamp) -> int:
        """Return the stamp's number."""
        if (number := self.known.get(stamp)) is None:
            self._numbered.append(stamp)
            number = self.known[stamp] = len(self._numbered)
        return number

    def keys(self, session: Session, node: Node, credited: bool, end: int | None = None) -> Keys:
        """A node's tokens as keys; those from `end` on are not trained."""
        key = np.array(node.token_ids, dtype=np.int64)
        if images.NAME in node.attachments:
            key = self.pictures.key(key, node)
        if not credited:
            return key
        temperature, view = node.sampling.temperature if node.sampling else 1.0, self.view_of(node)
        stamp = np.full(key.size, self.number(Stamp(temperature, -1, view)), dtype=np.int64)
        for span in node.versions:
            stamp[span.start : span.end] = self.number(Stamp(temperature, span.version, view))
        trainable = np.array(node.trainable, dtype=bool)
        conditions = self.declared.apart(session, node) if self.declared.has_apart else []
        if drawn := conditions_of(node):
            conditions = [(*other, *own) for own, other in zip(drawn, conditions or [()] * key.size, strict=True)]
        for place in np.flatnonzero(trainable) if conditions else ():
            sampled = self._numbered[stamp[place] - 1]
            stamp[place] = self.number(sampled._replace(apart=conditions[place]))
        if node.parent is None:
            trainable[:1] = False
        if end is not None:
            trainable[end:] = False
        return key | np.where(trainable, stamp << STAMP_SHIFT, 0)


def merge_sessions(sessions: Sequence[tuple[int, Session]], credit: Credit, stamps: Stamps) -> Segment:
    """Merge (index, session) pairs into one tree under an empty root; sessions without credit stay out."""
    root = Segment(np.empty(0, dtype=np.int64), [])
    for index, session in sessions:
        shares = {node.id: credit.shares.get((session.id, node.id), ()) for node in session.nodes}
        if not any(shares.values()):
            continue
        at: dict[int | None, Segment] = {None: root}
        ends = session.partly_used()
        for node in session.nodes:
            key = stamps.keys(session, node, bool(shares[node.id]), ends.get(node.id))
            if node.copied_tokens is not None:  # these are the same tokens as the original turn's
                turn = session.original(node)
                key[: node.copied_tokens] = stamps.keys(session, turn, bool(shares[turn.id]), ends.get(turn.id))[
                    : node.copied_tokens
                ]
            at[node.id] = _insert(at[node.parent], key, _Owner(index, node, shares[node.id], 0))
    return root


def _insert(cursor: Segment, key: Keys, owner: _Owner) -> Segment:
    """Insert `key` below `cursor`, splitting segments where needed; returns the segment that it ends with."""
    start = 0
    while key.size:
        child = cursor.children.get(int(key[0]))
        if child is None:
            child = cursor.children[int(key[0])] = Segment(
                key, [_Owner(owner.session, owner.node, owner.shares, start)]
            )
            return child
        n = min(key.size, child.key.size)
        differs = np.flatnonzero(child.key[:n] != key[:n])
        n = int(differs[0]) if differs.size else n
        if n < child.key.size:
            child = _split(cursor, child, n)
        child.owners.append(_Owner(owner.session, owner.node, owner.shares, start))
        cursor, key, start = child, key[n:], start + n
    return cursor


def _split(parent: Segment, segment: Segment, n: int) -> Segment:
    """Cut a segment's first `n` tokens off into a new parent of it. The tail stays the object that others hold."""
    head = Segment(segment.key[:n], [_Owner(o.session, o.node, o.shares, o.start) for o in segment.owners])
    parent.children[int(head.key[0])] = head
    segment.key = segment.key[n:]
    for o in segment.owners:
        o.start += n
    head.children[int(segment.key[0])] = segment
    return head


def list_supports(node: Node) -> support.Support | None:
    """The recorded supports of a turn that was not drawn from the whole vocabulary; None where there are none."""
    if node.sampling is None or node.sampling.full_support or support.NAME not in node.attachments:
        return None
    return support.unpack(node.attachments[support.NAME])


def conditions_of(node: Node) -> list[tuple[bytes, ...]]:
    """For each token of a node what, besides temperature and version, it was drawn by; empty where that is nothing."""
    found = list_supports(node)
    if found is None or node.sampling is None:
        return []
    given = repr((found.rule, penalties_of(node.sampling), node.sampling.logit_bias)).encode()
    codes = codes_of(node, found)
    rows = [found.sets[code - support.SETS] if code >= support.SETS else bytes((code,)) for code in codes]
    if not node.sampling.penalised:
        return [(given, row) for row in rows]
    start = len(codes) - len(found.codes)
    return [(given, row, str(place - start).encode()) for place, row in enumerate(rows)]


def codes_of(node: Node, found: support.Support) -> list[int]:
    """A code for each token of a node; of those that no row is about nothing is known."""
    return [support.UNKNOWN] * (len(node.token_ids) - len(found.codes)) + list(found.codes)


def penalties_of(sampling: Sampling) -> tuple[float, float, float]:
    """Repetition, presence and frequency penalty."""
    return sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty

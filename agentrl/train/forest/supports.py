"""The distributions that trained tokens were drawn from, as fields of a forest: what the trainer's head applies.

A turn whose support is recorded brings the set of each of its tokens, and, by its sampling and the rule that is
recorded with the sets, what its logits were changed by: penalties on the tokens before it, and a logit bias. Forests of
turns that were drawn from the whole vocabulary have none of these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.attachments import support
from agentrl.sessions.tree import tree
from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.train.forest.trie import STAMP_SHIFT, Segment, codes_of, list_supports, penalties_of
from agentrl.types import Node, Session

Fields = dict[str, Column | SharedColumn]

KEPT, BEFORE, PENALTIES, BIAS = "drawn.kept", "drawn.before", "drawn.penalties", "drawn.bias"
"""Fields: the kept ids, or -1 - id of excluded ones, empty for the whole vocabulary; the path's tokens before the
token; repetition, presence and frequency penalty and how many of these are the turn's own; and (id, bias) pairs."""


def fields_of(segments: Iterable[tuple[Segment, int]], sessions: Sequence[Session]) -> Fields:
    """The fields of a forest's tokens, each by its first owner; none where all were drawn from the whole vocabulary.

    Args:
        segments: in the forest's order, and how many tokens of each are in it.
        sessions: in the order of `Owner.session`.

    Raises:
        InvalidInput: a support is malformed.
    """
    pieces = list(segments)
    known = {id(node): list_supports(node) for node in (segment.owners[0].node for segment, _ in pieces)}
    if not any(known.values()):
        return {}
    forest = _Fields(sum(length for _, length in pieces))
    at = 0
    for segment, length in pieces:
        owner = segment.owners[0]
        found = known[id(owner.node)]
        if found is not None:
            trained = np.flatnonzero(segment.key[:length] >> STAMP_SHIFT)
            forest.write(at, owner.start, trained, found, owner.node, sessions[owner.session])
        at += length
    return forest.columns()


class _Fields:
    """The fields of a forest of `total` tokens, written turn by turn."""

    def __init__(self, total: int) -> None:
        self.kept = _Lists(np.zeros(0, dtype=np.int32), total)
        self.before = _Lists(np.zeros(0, dtype=np.int32), total)
        self.bias = _Lists(np.zeros((0, 2), dtype=np.float64), total)
        self.penalties = np.tile(np.array((1, 0, 0, 0), dtype=np.float32), (total, 1))

    def write(
        self, at: int, start: int, trained: NDArray[np.int64], found: support.Support, node: Node, session: Session
    ) -> None:
        """Write a turn's `trained` tokens of those from the node's `start` on, which are at `at` in the forest."""
        sampling, turn = node.drawn_with, (session.id, node.id)
        codes, opening = codes_of(node, found), len(node.token_ids) - len(found.codes)
        path = tree.path_ids(session, node.id) if sampling.penalised else []
        first = len(path) - len(node.token_ids) + opening if found.rule in support.OWN_TOKENS else 0
        path, prefix = path[first:], len(path) - len(node.token_ids) - first
        for offset in trained.tolist():
            place, code = start + offset, codes[start + offset]
            token = node.token_ids[place]
            if code == support.ONE:
                self.kept.set(at + offset, token, partial(np.array, [token]))
            elif code >= support.SETS:
                self.kept.set(at + offset, (*turn, code), partial(found.ids, code))
            if sampling.penalised:
                self.before.set(at + offset, turn, lambda: np.array(path), prefix + place)
                self.penalties[at + offset] = (*penalties_of(sampling), place - opening)
            if sampling.logit_bias:
                self.bias.set(at + offset, turn, lambda: np.array(sampling.logit_bias))

    def columns(self) -> Fields:
        columns: Fields = {KEPT: self.kept.column()}
        if self.before.known:
            columns |= {BEFORE: self.before.column(), PENALTIES: Column(torch.from_numpy(self.penalties))}
        if self.bias.known:
            columns |= {BIAS: self.bias.column()}
        return columns


class _Lists:
    """The lists of a forest's tokens, each stored once."""

    def __init__(self, empty: NDArray[np.generic], total: int) -> None:
        self.known: dict[Hashable, tuple[int, int]] = {}
        self._values, self._end = [empty], 0
        self._start, self._length = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)

    def set(
        self, token: int, key: Hashable, make: Callable[[], NDArray[np.generic]], length: int | None = None
    ) -> None:
        """Give a token the list of that key, or its first `length` entries; it is made where it is not there yet."""
        if key not in self.known:
            values = make().astype(self._values[0].dtype)
            self.known[key] = self._end, len(values)
            self._values.append(values)
            self._end += len(values)
        start, whole = self.known[key]
        self._start[token], self._length[token] = start, whole if length is None else length

    def column(self) -> SharedColumn:
        values = torch.from_numpy(np.concatenate(self._values))
        return SharedColumn(values, torch.from_numpy(self._start), torch.from_numpy(self._length))

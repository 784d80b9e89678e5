"""The layout of a forest: segments of trees one after the other, with positions, ends and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.train.forest.forest import Forest
from agentrl.train.forest.trie import ID_MASK, STAMP_SHIFT, Segment, Stamp

Merge = Literal["mean", "channels"]

WEIGHT, PLUS, MINUS, VALUE, RETURN = range(5)
"""Sums over a token's owners: their weights, and by them the rest; advantages by sign."""


@dataclass(frozen=True, slots=True)
class ForestPart:
    """Segments in depth-first order, their parents' places in it, whether this part trains them, and their patches."""

    segments: tuple[Segment, ...]
    lengths: tuple[int, ...]
    parents: tuple[int, ...]
    trained: tuple[bool, ...]
    patches: int = 0

    @property
    def size(self) -> int:
        """The number of tokens."""
        return sum(self.lengths)

    @property
    def load(self) -> int:
        """The tokens, and the patches of images, which a token budget counts."""
        return self.size + self.patches


@dataclass
class _Columns:
    """The columns of a forest of `total` tokens, written segment by segment.

    Attributes:
        key: the token's id and, where it is trained, the stamp of its temperature and version (`trie`).
        position: its depth along its path.
        end: one past its subtree.
        predictor: the place of the token before it on its path; -1 at a root.
        node_id: its node.
        session_id: the place of its session in the batch.
        agent_id: the place of its agent among the batch's.
        logp: its behaviour log-probability.
        sums: [5, total], over its owners; see `WEIGHT` and the others.
    """

    total: int
    key: NDArray[np.int64] = field(init=False)
    position: NDArray[np.int64] = field(init=False)
    end: NDArray[np.int64] = field(init=False)
    predictor: NDArray[np.int64] = field(init=False)
    node_id: NDArray[np.int64] = field(init=False)
    session_id: NDArray[np.int64] = field(init=False)
    agent_id: NDArray[np.int64] = field(init=False)
    logp: NDArray[np.float64] = field(init=False)
    sums: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.position, self.end, self.predictor = (np.zeros(self.total, dtype=np.int64) for _ in range(4))
        self.node_id, self.session_id, self.agent_id = (np.zeros(self.total, dtype=np.int64) for _ in range(3))
        self.logp, self.sums = np.zeros(self.total, dtype=np.float64), np.zeros((5, self.total), dtype=np.float64)

    def write(self, part: ForestPart, offset: int, agents: Sequence[str]) -> int:
        """Write a part's segments from `offset` on; where the next part begins."""
        starts = offset + np.concatenate(([0], np.cumsum(part.lengths)))
        ends = _ends(part, starts)
        for i, segment in enumerate(part.segments):
            at = slice(int(starts[i]), int(starts[i + 1]))
            parent = part.parents[i]
            before = int(starts[parent + 1]) - 1 if parent >= 0 else -1
            depth = int(self.position[before]) + 1 if parent >= 0 else 0
            length = part.lengths[i]
            self.key[at] = segment.key[:length]
            self.position[at] = np.arange(depth, depth + length)
            self.end[at] = ends[i]
            self.predictor[at] = np.arange(at.start - 1, at.stop - 1)
            self.predictor[at.start] = before
            first = segment.owners[0]
            self.node_id[at], self.session_id[at] = first.node.id, first.session
            self.agent_id[at] = agents.index(first.node.agent)
            if part.trained[i] and segment.trained:
                self.logp[at] = first.node.logprobs[first.start : first.start + length]
                _add_shares(segment, length, self.sums[:, at])
            else:
                self.key[at] &= ID_MASK
        return int(starts[-1])


def build_forest(
    parts: Sequence[ForestPart],
    stamps: Sequence[Stamp],
    sessions: tuple[str, ...],
    agents: tuple[str, ...],
    merge: Merge,
    critic: bool,
) -> Forest:
    """A forest of these parts.

    Args:
        parts: in the order in which they are written.
        stamps: temperature, version and critic's view by stamp.
        sessions: the ids of the batch's sessions, in its order.
        agents: the names of the batch's agents.
        merge: how several advantages at one token are combined.
        critic: whether there are values and returns.
    """
    columns = _Columns(sum(part.size for part in parts))
    offset = 0
    for part in parts:
        offset = columns.write(part, offset, agents)
    stamp = columns.key >> STAMP_SHIFT
    target = np.flatnonzero(columns.predictor >= 0)
    order = np.argsort(columns.predictor[target], kind="stable")
    weight, rest = columns.sums[WEIGHT], columns.sums[PLUS:]
    plus, minus, value, returns = rest * np.divide(1.0, weight, out=np.zeros_like(weight), where=weight > 0)
    return Forest(
        token_ids=torch.from_numpy(columns.key & ID_MASK),
        position=torch.from_numpy(columns.position),
        end=torch.from_numpy(columns.end),
        node_id=torch.from_numpy(columns.node_id),
        session_id=torch.from_numpy(columns.session_id),
        agent_id=torch.from_numpy(columns.agent_id),
        weight=_floats(weight),
        advantage=_floats(plus + minus if merge == "mean" else plus),
        temperature=_floats(np.array([s.temperature for s in stamps])[stamp]),
        behaviour_logp=_floats(np.where(stamp > 0, columns.logp, 0.0)),
        version=torch.from_numpy(np.array([s.version for s in stamps], dtype=np.int64)[stamp]),
        predictor=torch.from_numpy(columns.predictor[target][order]),
        target=torch.from_numpy(target[order]),
        sessions=sessions,
        agents=agents,
        advantage_minus=None if merge == "mean" else _floats(minus),
        value=_floats(value) if critic else None,
        returns=_floats(returns) if critic else None,
        critic_view=_floats(np.array([s.view for s in stamps])[stamp]) if stamps[0].view else None,
    )


def _ends(part: ForestPart, starts: NDArray[np.int64]) -> list[int]:
    ends = [int(end) for end in starts[1:]]
    for i in reversed(range(len(ends))):
        if part.parents[i] >= 0:
            ends[part.parents[i]] = max(ends[part.parents[i]], ends[i])
    return ends


def _add_shares(segment: Segment, length: int, sums: NDArray[np.float64]) -> None:
    """Add up the advantages that a segment's owners have for its tokens: [5, length], see `WEIGHT` and the others."""
    trained = (segment.key[:length] >> STAMP_SHIFT) > 0
    for owner in segment.owners:
        for share in owner.shares:
            weight, at = share.weight * trained, slice(owner.start, owner.start + length)
            advantage = np.asarray(share.advantage, dtype=np.float64)
            if advantage.ndim:
                advantage = advantage[at]
            sums[WEIGHT] += weight
            sums[PLUS] += weight * np.maximum(advantage, 0.0)
            sums[MINUS] += weight * np.minimum(advantage, 0.0)
            if share.values is not None and share.returns is not None:
                sums[VALUE] += weight * np.asarray(share.values[at])
                sums[RETURN] += weight * np.asarray(share.returns[at])


def _floats(values: NDArray[np.float64]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))

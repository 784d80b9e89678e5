"""The routed experts that engines recorded, by node and by forest token.

A turn records the experts of the path's last tokens, back over all nodes that its engine had to compute (see
`agentrl.attachments.routed_experts`). Here they are assigned to those nodes. Where several turns recorded the same
token, the first one counts: it computed the keys and values that the others reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.attachments import routed_experts
from agentrl.errors import InvalidInput
from agentrl.train.forest.trie import Segment
from agentrl.types import Session

Rows = NDArray[np.int16]
"""Experts by token, layer with experts, and choice; -1 where nothing is known."""


def experts_by_node(session: Session) -> dict[int, Rows]:
    """The rows of every node with recorded experts, by its id.

    Raises:
        InvalidInput: malformed data, or of more tokens than the path has, or of another shape than others of the
            session; the message names session and node.
    """
    found: dict[int, Rows] = {}
    shape: tuple[int, ...] | None = None
    for node in session.nodes:
        data = node.attachments.get(routed_experts.NAME)
        if data is None:
            continue
        try:
            rows = routed_experts.unpack(data)
        except InvalidInput as error:
            raise InvalidInput(f"session {session.id!r}, node {node.id}: {error}") from None
        shape = shape or rows.shape[1:]
        if rows.shape[1:] != shape:
            raise InvalidInput(
                f"session {session.id!r}, node {node.id}: routed experts of {rows.shape[1:]} (layers, k); "
                f"expected {shape}"
            )
        left = _assign(session, node.id, rows, found)
        if left:
            raise InvalidInput(
                f"session {session.id!r}, node {node.id}: routed experts of {len(rows)} tokens; expected at most "
                f"{len(rows) - left}, which is what the path up to its end has"
            )
    return found


def _assign(session: Session, node_id: int, rows: Rows, found: dict[int, Rows]) -> int:
    """Give the rows to the nodes from `node_id` upwards; returns how many are left over."""
    left, at = len(rows), node_id
    while left:
        node = session.nodes[at]
        count = len(node.token_ids)
        own = found.setdefault(at, np.full((count, *rows.shape[1:]), -1, dtype=np.int16))
        take = min(left, count)
        _fill(own[count - take :], rows[left - take : left])
        left -= take
        if node.parent is None:
            break
        at = node.parent
    return left


def experts_of_segments(segments: Iterable[tuple[Segment, int]], sessions: Sequence[dict[int, Rows]]) -> Tensor | None:
    """The rows of a forest's tokens, int16, each from its first owner that has them; None if nothing was recorded.

    Args:
        segments: in the forest's order, and how many tokens of each are in it.
        sessions: each session's rows (see `experts_by_node`), in the order of `Owner.session`.

    Raises:
        InvalidInput: the batch's rows are not of one shape.
    """
    shapes = {rows.shape[1:] for nodes in sessions for rows in nodes.values()}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise InvalidInput(f"a batch's routed experts must be of one shape (layers, k), not of {sorted(shapes)}")
    [shape] = shapes
    pieces = []
    for segment, length in segments:
        piece = np.full((length, *shape), -1, dtype=np.int16)
        for owner in segment.owners:
            rows = sessions[owner.session].get(owner.node.id)
            if rows is not None:
                _fill(piece, rows[owner.start : owner.start + length])
        pieces.append(piece)
    return torch.from_numpy(np.concatenate(pieces))


def _fill(known: Rows, more: Rows) -> None:
    missing = known[:, 0, 0] < 0
    known[missing] = more[missing]

"""Attachments of the kind `routed_experts`: which experts each token of a path went to, as bytes.

A row is about one token, at the forward pass in which it was the *input*: for each layer that has experts, the k
that it was sent to. A sampled token becomes an input only when the next one is sampled, so the last row of a turn is
unknown until a later turn computes it. For the same reason an engine knows rows of tokens that others wrote
(prompts, results of tools): they are computed when the next turn is generated. The data of a turn or a node therefore
holds rows of the *last* tokens of the path that ends there, and may reach back over the nodes before it: each turn
brings the rows that no earlier turn of its path has, and nothing stored is rewritten.

The bytes: a header of four (bytes of one expert's number, 1 or 2; k; layers, little-endian), then the rows, each
layers * k numbers, little-endian. The largest number means "unknown", in whole rows. Numbers take one byte
for up to 255 experts. Given up: compression; these rows hardly compress, and a path's are recorded once.

Engines and trainers use `pack` and `unpack`, which need numpy; the rest works on bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from agentrl.attachments import AttachmentKind
from agentrl.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "routed_experts"
_HEADER = struct.Struct("<BBH")


class _Shape(NamedTuple):
    """The shape of a row: bytes of one expert's number, experts of a token, layers that have experts."""

    width: int
    topk: int
    layers: int

    @property
    def row(self) -> int:
        return self.width * self.topk * self.layers

    @property
    def unknown(self) -> bytes:
        """A row of which nothing is known."""
        return b"\xff" * self.row


def shape(data: bytes) -> _Shape:
    """Return what the rows are made of.

    Raises:
        InvalidInput: these bytes are no routed experts.
    """
    if len(data) < _HEADER.size:
        raise InvalidInput(f"routed experts of {len(data)} bytes have no header, which takes {_HEADER.size}")
    found = _Shape(*_HEADER.unpack_from(data))
    if found.width not in (1, 2) or not found.row:
        raise InvalidInput(f"routed experts begin with {data[: _HEADER.size]!r}, which is no header: {found}")
    if (len(data) - _HEADER.size) % found.row:
        raise InvalidInput(
            f"routed experts of {len(data)} bytes are no whole number of rows of {found.row} bytes ({found})"
        )
    return found


def count(data: bytes) -> int:
    """Return the number of rows."""
    return (len(data) - _HEADER.size) // shape(data).row


def unknown_at_end(data: bytes) -> int:
    """Return the number of last rows that are unknown."""
    row, unknown = shape(data).row, shape(data).unknown
    found, at = 0, len(data)
    while at > _HEADER.size and data[at - row : at] == unknown:
        found, at = found + 1, at - row
    return found


def join(first: bytes | None, last: bytes | None, tokens: int) -> bytes | None:
    """The rows of a path that was recorded in two pieces.

    Args:
        first: rows that end where the path ended then; what they know stays.
        last: rows that end where it ends now; they give what `first` does not know at its end.
        tokens: how many tokens the path has grown by in between.

    Raises:
        InvalidInput: the two have different shapes.
    """
    if first is None or last is None:
        return last if first is None else first + shape(first).unknown * tokens
    made = shape(first)
    if made != shape(last):
        raise InvalidInput(f"routed experts of one path have different shapes: {made} and {shape(last)}")
    open_rows = unknown_at_end(first) + tokens
    known = first[: len(first) - unknown_at_end(first) * made.row]
    given = last[_HEADER.size :][-open_rows * made.row :] if open_rows else b""
    return known + made.unknown * (open_rows - len(given) // made.row) + given


def pack(experts_TLk: NDArray[np.integer], experts: int) -> bytes:
    """Rows as bytes.

    Args:
        experts_TLk: experts' numbers by token, layer with experts, and choice; -1 (in whole rows) where unknown.
        experts: how many each layer has.

    Raises:
        InvalidInput: the array has another number of dimensions, or names an expert that is not there.
    """
    import numpy as np

    if experts_TLk.ndim != 3:
        raise InvalidInput(f"routed experts have the shape (tokens, layers, k), not {experts_TLk.shape}")
    if experts_TLk.size and not -1 <= experts_TLk.min() <= experts_TLk.max() < experts:
        raise InvalidInput(f"routed experts are {experts_TLk.min()} to {experts_TLk.max()}, of {experts}")
    width = 1 if experts <= 255 else 2
    _, layers, topk = experts_TLk.shape
    return _HEADER.pack(width, topk, layers) + experts_TLk.astype("<i2").astype(np.dtype(f"<u{width}")).tobytes()


def unpack(data: bytes) -> NDArray[np.int16]:
    """The rows as an array of shape (tokens, layers, k), -1 where nothing is known.

    Raises:
        InvalidInput: these bytes are no routed experts.
    """
    import numpy as np

    made = shape(data)
    rows = np.frombuffer(data, dtype=np.dtype(f"<u{made.width}"), offset=_HEADER.size)
    unknown = np.iinfo(rows.dtype).max
    return np.where(rows == unknown, -1, rows.astype(np.int32)).astype(np.int16).reshape(-1, made.layers, made.topk)


class RoutedExperts(AttachmentKind):
    """Rows of routed experts, as they belong to the tokens of a path."""

    name = NAME

    def check(self, data: bytes, tokens: int) -> None:
        rows = count(data)
        if rows > tokens:
            raise InvalidInput(
                f"routed experts of {rows} tokens; expected at most {tokens}, which is what the path up to its end has"
            )

    def covered(self, data: bytes, tokens: int) -> int:
        """All tokens but those whose rows are unknown at the end."""
        return tokens - unknown_at_end(data)

    def join(self, first: bytes | None, last: bytes | None, tokens: int) -> bytes | None:
        """The first one's rows, and the last one's for what the first one does not know at its end."""
        return join(first, last, tokens)


KIND = RoutedExperts()

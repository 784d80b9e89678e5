"""Attachments of the kind `images`: what a model's processor made of a node's images, in float32.

An image is one or more frames, and each frame stands for a grid of placeholder tokens of the node. A frame is three
colours and a mask (1 where there is an image, 0 where there is padding), [4, height, width], for models that see
pictures of one size, or its patches, [n, values], for models that see them of any. Places are not stored: the node's
placeholder tokens take the frames' features in order. So nodes with the same image have the same bytes, which the store
keeps once, and pixels are never processed a second time. The bytes: a header (letter, placeholder's id, number of
frames, a digest of the processor's settings), each frame's grid and shape, then the frames' numbers, little-endian.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.attachments import AttachmentKind
from agentrl.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "images"
_HEADER = struct.Struct("<cIH16s")
_FRAME = struct.Struct("<HH3I")
_LETTER, _BOTH = b"J", b"B"
"""The header's letter, and that of frames whose tokens see each other both ways."""
_EARLIER = struct.Struct("<cIIIHH16s")
"""The header of earlier bytes (letter I): pictures of one size, each of as many placeholder tokens."""
_WIDTH = 4


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """A node's images as a model's inputs.

    Attributes:
        token: the id of the placeholder token.
        settings: a digest of the processor's settings.
        frames: float32, [4, height, width] or [patches, values] each.
        grids: rows and columns of each frame's placeholder tokens.
        both: whether a frame's tokens see each other both ways, as Gemma 3's do.
    """

    token: int
    settings: bytes
    frames: tuple[NDArray[np.float32], ...]
    grids: tuple[tuple[int, int], ...]
    both: bool = False

    @property
    def count(self) -> int:
        """The number of placeholder tokens."""
        return sum(rows * columns for rows, columns in self.grids)

    @property
    def axes(self) -> bool:
        """True where positions have three axes (`axes_of`), as in all families that see patches."""
        return self.frames[0].ndim == 2

    def pack(self) -> bytes:
        """These inputs as bytes."""
        header = _HEADER.pack(_BOTH if self.both else _LETTER, self.token, len(self.frames), self.settings)
        shapes = [
            _FRAME.pack(*grid, *frame.shape, *[0] * (3 - frame.ndim))
            for frame, grid in zip(self.frames, self.grids, strict=True)
        ]
        return b"".join([header, *shapes, *(frame.astype("<f4").tobytes() for frame in self.frames)])

    def digests(self) -> list[bytes]:
        """One digest for each frame; equal where the model's features are."""
        about = self.settings + struct.pack("<I", self.token)
        return [
            hashlib.sha256(about + repr((grid, frame.shape)).encode() + frame.tobytes()).digest()
            for frame, grid in zip(self.frames, self.grids, strict=True)
        ]

    def places(self, token_ids: Any) -> NDArray[np.int64]:
        """The places of the placeholder tokens among a node's, in order.

        Raises:
            InvalidInput: there are more or fewer than the frames stand for.
        """
        import numpy as np

        found = np.flatnonzero(np.asarray(token_ids) == self.token)
        if found.size != self.count:
            raise InvalidInput(
                f"{len(self.frames)} image frames of {self.grids} tokens need {self.count} placeholder tokens "
                f"(id {self.token}), not {found.size}"
            )
        return found


SIDE = 14
"""Pixels of a patch's side, as most towers have them."""


def patches_in(shape: tuple[int, ...]) -> int:
    """The patches that a tower makes of a frame: of a picture an estimate, by the side that patches usually have."""
    return shape[0] if len(shape) == 2 else -(-shape[-2] // SIDE) * -(-shape[-1] // SIDE)


def axes_of(
    depth: NDArray[np.int64], shift: NDArray[np.int64], place: NDArray[np.int64], grid: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Positions with three axes (time, row, column), as Qwen2-VL counts them (arXiv:2409.12191, section 2.1).

    A text's token is one behind all that is before it. An image's tokens share their time, and count rows and columns
    from there; what follows is one behind the largest.

    Args:
        depth: [T], along the path.
        shift: [T], the sum of `shift_of` over the tokens before it on its path.
        place: [T], which of its image's tokens it is; -1 for text.
        grid: [T, 2], rows and columns of its image; 0 for text.

    Returns:
        [T, 3].
    """
    import numpy as np

    seen, columns = place >= 0, np.maximum(grid[:, 1], 1)
    first = depth + shift - np.where(seen, place, 0)
    row, column = np.where(seen, place // columns, 0), np.where(seen, place % columns, 0)
    return np.stack([first, first + row, first + column], 1)


def shift_of(place: NDArray[np.int64], grid: NDArray[np.int64]) -> NDArray[np.int64]:
    """The difference of positions from depths that begins behind a token, where it ends an image: [T]."""
    import numpy as np

    count = grid[:, 0] * grid[:, 1]
    return np.where((place >= 0) & (place == count - 1), grid.max(1) - count, 0)


def last_seen(place: NDArray[np.int64], grid: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last place of a row that each token sees, where a frame's tokens see each other both ways: [T].

    Args:
        place: [T], which of its frame's tokens it is; -1 for text.
        grid: [T, 2], rows and columns of its frame; 0 for text.
    """
    import numpy as np

    return np.arange(len(place)) + np.where(place >= 0, grid[:, 0] * grid[:, 1] - 1 - place, 0)


def _shapes(data: bytes) -> tuple[int, bytes, list[tuple[tuple[int, int], tuple[int, ...]]]]:
    """Placeholder's id, settings, and each frame's grid and shape; the frames' numbers are behind them."""
    if data[:1] == b"I" and len(data) >= _EARLIER.size:
        _, token, tokens, count, height, width, settings = _EARLIER.unpack_from(data)
        if (
            not (tokens and count and height and width)
            or len(data) != _EARLIER.size + 4 * count * height * width * _WIDTH
        ):
            raise InvalidInput(f"images of {len(data)} bytes have {count} frames of {height} x {width}")
        return token, settings, [((1, tokens), (4, height, width))] * count
    if len(data) < _HEADER.size:
        raise InvalidInput(f"images of {len(data)} bytes have no header, which takes {_HEADER.size}")
    letter, token, count, settings = _HEADER.unpack_from(data)
    if letter not in (_LETTER, _BOTH) or not count or len(data) < _HEADER.size + count * _FRAME.size:
        raise InvalidInput(
            f"images of {len(data)} bytes begin with {letter!r} for {count} frames; expected {_LETTER!r}"
        )
    found = []
    for number in range(count):
        rows, columns, *shape = _FRAME.unpack_from(data, _HEADER.size + number * _FRAME.size)
        found.append(((rows, columns), tuple(shape if shape[2] else shape[:2])))
    size = _HEADER.size + count * _FRAME.size + sum(math.prod(shape) for _, shape in found) * _WIDTH
    if len(data) != size or any(not (math.prod(grid) and math.prod(shape)) for grid, shape in found):
        raise InvalidInput(f"images of {len(data)} bytes have frames of {found}; expected {size} bytes, and no zeros")
    return token, settings, found


def unpack(data: bytes) -> ImageInputs:
    """The inputs in these bytes.

    Raises:
        InvalidInput: these bytes are no images.
    """
    import numpy as np

    token, settings, found = _shapes(data)
    size = sum(math.prod(shape) for _, shape in found) * _WIDTH
    values = np.frombuffer(data, dtype="<f4", offset=len(data) - size)
    if not np.isfinite(values).all():
        raise InvalidInput("images have pixels that are not finite")
    pieces = np.split(values, np.cumsum([math.prod(shape) for _, shape in found])[:-1])
    frames = tuple(piece.reshape(shape) for piece, (_, shape) in zip(pieces, found, strict=True))
    return ImageInputs(token, settings, frames, tuple(grid for grid, _ in found), data[:1] == _BOTH)


class Images(AttachmentKind):
    """Each node's images are complete."""

    name = NAME

    def check(self, data: bytes, tokens: int) -> None:
        """Whole frames, with no more placeholder tokens than the path has tokens."""
        count = sum(math.prod(grid) for grid, _ in _shapes(data)[2])
        if count > tokens:
            raise InvalidInput(f"images of {count} tokens; the path up to their end has {tokens}")


KIND = Images()

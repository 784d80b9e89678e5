"""Attachments of the kind `images`: what a model's processor made of a node's images, as pixels in float32.

An image is one or more frames of one size, and each frame stands for `per_frame` placeholder tokens of the node. Places
are not stored: the node's placeholder tokens take the frames' features in order. So nodes with the same image have the
same bytes, which the store keeps once, and pixels are never processed a second time. The bytes: a header (letter,
placeholder's id, tokens of a frame, number of frames, height, width, a digest of the processor's settings), then each
frame's three colours and its mask (1 where there is an image, 0 where there is padding), little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.attachments import AttachmentKind
from agentrl.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "images"
CHANNELS = 4
"""Three colours, and the mask."""
_HEADER = struct.Struct("<cIIIHH16s")
_LETTER = b"I"
_WIDTH = 4


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """A node's images as a model's inputs.

    Attributes:
        token: the id of the placeholder token.
        per_frame: how many placeholder tokens a frame has.
        settings: a digest of the processor's settings.
        frames: float32 [n, 4, height, width].
    """

    token: int
    per_frame: int
    settings: bytes
    frames: NDArray[np.float32]

    def pack(self) -> bytes:
        """These inputs as bytes."""
        count, _, height, width = self.frames.shape
        header = _HEADER.pack(_LETTER, self.token, self.per_frame, count, height, width, self.settings)
        return header + self.frames.astype("<f4").tobytes()

    def digests(self) -> list[bytes]:
        """One digest for each frame; equal where the model's features are."""
        about = self.settings + struct.pack("<II", self.token, self.per_frame)
        return [hashlib.sha256(about + frame.tobytes()).digest() for frame in self.frames]

    def places(self, token_ids: Any) -> NDArray[np.int64]:
        """The places of the placeholder tokens among a node's, in order.

        Raises:
            InvalidInput: there are more or fewer than the frames stand for.
        """
        import numpy as np

        found = np.flatnonzero(np.asarray(token_ids) == self.token)
        if found.size != len(self.frames) * self.per_frame:
            raise InvalidInput(
                f"{len(self.frames)} image frames of {self.per_frame} tokens each need "
                f"{len(self.frames) * self.per_frame} placeholder tokens (id {self.token}), not {found.size}"
            )
        return found


def _header(data: bytes) -> tuple[int, int, int, int, int, bytes]:
    """Placeholder's id, tokens of a frame, frames, height, width, settings.

    Raises:
        InvalidInput: these bytes are no images.
    """
    if len(data) < _HEADER.size:
        raise InvalidInput(f"images of {len(data)} bytes have no header, which takes {_HEADER.size}")
    letter, token, per_frame, count, height, width, settings = _HEADER.unpack_from(data)
    size = _HEADER.size + count * CHANNELS * height * width * _WIDTH
    if letter != _LETTER or not (per_frame and count and height and width) or len(data) != size:
        raise InvalidInput(
            f"images of {len(data)} bytes have the header {data[:1]!r}, {count} frames of {height} x {width}, "
            f"{per_frame} tokens each; expected {_LETTER!r}, none of them 0, and {size} bytes"
        )
    return token, per_frame, count, height, width, settings


def unpack(data: bytes) -> ImageInputs:
    """The inputs in these bytes.

    Raises:
        InvalidInput: these bytes are no images.
    """
    import numpy as np

    token, per_frame, count, height, width, settings = _header(data)
    frames = np.frombuffer(data, dtype="<f4", offset=_HEADER.size).reshape(count, CHANNELS, height, width)
    if not np.isfinite(frames).all():
        raise InvalidInput("images have pixels that are not finite")
    return ImageInputs(token, per_frame, settings, frames)


class Images(AttachmentKind):
    """Each node's images are complete."""

    name = NAME

    def check(self, data: bytes, tokens: int) -> None:
        """Whole frames, with no more placeholder tokens than the path has tokens."""
        _, per_frame, count, *_ = _header(data)
        if per_frame * count > tokens:
            raise InvalidInput(f"images of {per_frame * count} tokens; the path up to their end has {tokens}")


KIND = Images()

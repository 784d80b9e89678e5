"""Images of a forest, as two of its fields: `images`, each distinct frame once, and `image_place`.

While sessions merge into a tree, a placeholder token's key names the feature that stands for it: the frame, by content,
and the place in it. So tokens of two images are never merged, and those of one image are, on whatever path they lie.
Then the ids become the placeholder's again. Only placeholder tokens have a frame in `images`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.attachments import images
from agentrl.errors import InvalidInput
from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.types import Node

FRAMES, PLACE = "images", "image_place"
FIRST = 1 << 28
"""Ids from here on name features of images; no vocabulary is as large."""


class Pictures:
    """The distinct frames of a batch, numbered in order of first occurrence."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._frames: list[NDArray[np.float32]] = []
        self._kind: tuple[int, int, tuple[int, ...]] | None = None

    def __bool__(self) -> bool:
        return bool(self._known)

    def key(self, token_ids: NDArray[np.int64], node: Node) -> NDArray[np.int64]:
        """A node's ids, in which placeholder tokens name their features.

        Raises:
            InvalidInput: its images don't fit its tokens or the batch's others, or one of their tokens is trained.
        """
        found = images.unpack(node.attachments[images.NAME])
        kind = found.token, found.per_frame, found.frames.shape[1:]
        self._kind = self._kind or kind
        if kind != self._kind:
            raise InvalidInput(f"images of one batch have different placeholders or sizes: {self._kind} and {kind}")
        at = found.places(token_ids)
        if np.asarray(node.trainable, dtype=bool)[at].any():
            raise InvalidInput(f"node {node.id}: tokens of an image are to be trained, which nobody sampled")
        number = []
        for digest, frame in zip(found.digests(), found.frames, strict=True):
            if digest not in self._known:
                self._known[digest] = len(self._frames)
                self._frames.append(frame)
            number.append(self._known[digest])
        named = token_ids.copy()
        place = np.arange(found.per_frame)
        named[at] = FIRST + (np.asarray(number)[:, None] * found.per_frame + place).ravel()
        return named

    def restore(self, token_ids: Tensor) -> tuple[Tensor, dict[str, Column | SharedColumn]]:
        """A forest's token ids without names of features, and its images as fields, where it has some."""
        named = token_ids >= FIRST
        if self._kind is None or not bool(named.any()):
            return token_ids, {}
        token, per_frame, _ = self._kind
        feature = torch.where(named, token_ids - FIRST, 0)
        used, start = torch.unique(feature[named] // per_frame, return_inverse=True)
        frames = torch.from_numpy(np.stack([self._frames[int(one)] for one in used]))
        starts = torch.zeros_like(feature)
        starts[named] = start
        place = Column(torch.where(named, feature % per_frame, -1), None, -1)
        fields: dict[str, Column | SharedColumn] = {FRAMES: SharedColumn(frames, starts, named.long()), PLACE: place}
        return torch.where(named, token, token_ids), fields


def images_of(fields: Mapping[str, Column | SharedColumn]) -> tuple[Tensor, Tensor, Tensor] | None:
    """A forest's frames, and each token's frame and place in it (-1 for text); None where it has no images."""
    frames, place = fields.get(FRAMES), fields.get(PLACE)
    if not isinstance(frames, SharedColumn) or not isinstance(place, Column):
        return None
    return frames.values, torch.where(frames.length > 0, frames.start, -1), place.values

"""Images of the local engine's prompts: ids that name their features, and the features, computed once for each frame.

A prompt's placeholder tokens are replaced by ids beyond the vocabulary that name frame and place, so that the prefix
cache, which compares ids, shares what has the same pixels and nothing else. Frames live as long as a request has them,
and the last ones longer, up to a number of bytes. A frame that comes again has another number than one that was let go,
so old prefixes are never taken for it. Features are computed frame by frame: what else is there changes no bit.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from agentrl.attachments import images
from agentrl.errors import InvalidInput
from agentrl.models import vision
from agentrl.types import Placed

FIRST = 1 << 28
"""Ids from here on name features of images; no vocabulary is as large."""
_KEPT_BYTES = 256 << 20


class ImageFrame:
    """A frame's pixels, [4, height, width], and its features, [tokens, d], while they are those of the weights."""

    def __init__(self, number: int, pixels: Tensor) -> None:
        self.number, self.pixels = number, pixels
        self.features: Tensor | None = None


class ImageStore:
    """The frames that a model's prompts have.

    Args:
        model: of a known vision-language family.
    """

    def __init__(self, model: Any) -> None:
        self.trunk: Any = model.base_model
        self.token: int = self.trunk.config.image_token_id
        seen = self.trunk.config.vision_config
        self.side: int = seen.image_size
        patches = (self.side // seen.patch_size) ** 2
        self.per_frame = int(patches // self.trunk.config.scale_factor**2)
        self.encoded = 0
        self._next = itertools.count()
        self._by_digest: WeakValueDictionary[bytes, ImageFrame] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, ImageFrame] = WeakValueDictionary()
        self._recent: OrderedDict[int, ImageFrame] = OrderedDict()
        self._bytes = 0

    def named(self, ids: list[int], attached: Sequence[Placed]) -> tuple[list[int], tuple[ImageFrame, ...]]:
        """The prompt's ids in which images' tokens name their features, and the frames, which the request holds.

        Args:
            ids: the whole path.
            attached: what its nodes carry, and where they begin.

        Raises:
            InvalidInput: an image is not of this model's processor, or its tokens are not there.
        """
        named, held = list(ids), []
        for start, kind, data in attached:
            if kind != images.NAME:
                raise InvalidInput(f"engine=local takes images with a prompt, not attachments of the kind {kind!r}")
            found = images.unpack(data)
            shape = (found.token, found.per_frame, *found.frames.shape[2:])
            own = (self.token, self.per_frame, self.side, self.side)
            if shape != own:
                raise InvalidInput(
                    f"images have (placeholder, tokens of a frame, height, width) = {shape}; the model's are {own}"
                )
            count = len(found.frames) * self.per_frame
            at = [place for place in range(start, len(ids)) if ids[place] == self.token][:count]
            if len(at) < count:
                raise InvalidInput(f"images need {count} placeholder tokens (id {self.token}), not {len(at)}")
            places = iter(at)
            for digest, pixels in zip(found.digests(), found.frames, strict=True):
                frame = self._frame(digest, pixels)
                held.append(frame)
                for place in range(self.per_frame):
                    named[next(places)] = FIRST + frame.number * self.per_frame + place
        return named, tuple(held)

    def _frame(self, digest: bytes, pixels: np.ndarray) -> ImageFrame:
        frame = self._by_digest.get(digest)
        if frame is None:
            frame = ImageFrame(next(self._next), torch.from_numpy(np.array(pixels)))
            self._by_digest[digest] = self._by_number[frame.number] = frame
        if frame.number not in self._recent:
            self._bytes += frame.pixels.nbytes
            self._recent[frame.number] = frame
        self._recent.move_to_end(frame.number)
        while self._bytes > _KEPT_BYTES and len(self._recent) > 1:
            self._bytes -= self._recent.popitem(last=False)[1].pixels.nbytes
        return frame

    def forget(self) -> None:
        """Drop all features: the weights changed."""
        for frame in list(self._by_number.values()):
            frame.features = None

    def embed(self, tokens_N: Tensor) -> Tensor:
        """The embeddings of a step's tokens, [1, N, d]."""
        at = torch.nonzero(tokens_N >= FIRST).flatten()
        feature = tokens_N[at] - FIRST
        real = tokens_N.clone()
        real[at] = self.token
        embedded: Tensor = self.trunk.get_input_embeddings()(real[None])
        for number in torch.unique(feature // self.per_frame).tolist():
            of_frame = feature // self.per_frame == number
            embedded[0, at[of_frame]] = self._features(number)[feature[of_frame] % self.per_frame].to(embedded.dtype)
        return embedded

    def _features(self, number: int) -> Tensor:
        frame = self._by_number[number]
        if frame.features is None:
            device = next(self.trunk.parameters()).device
            frame.features = vision.features(self.trunk, frame.pixels[None].to(device))[0]
            self.encoded += 1
        return frame.features

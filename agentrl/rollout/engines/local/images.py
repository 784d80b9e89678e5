"""Images of the local engine's prompts: ids that name their features, and the features, computed once for each frame.

A prompt's placeholder tokens are replaced by ids beyond the vocabulary that name frame and place, so that the prefix
cache, which compares ids, shares what has the same pixels and nothing else. Frames live as long as a request has them,
and the last ones longer, up to a number of bytes. A frame that comes again has another number than one that was let go,
so old prefixes are never taken for it. Features are computed frame by frame: what else is there changes no bit.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.attachments import images
from agentrl.errors import InvalidInput
from agentrl.models import vision
from agentrl.types import Placed

FIRST = 1 << 28
"""Ids from here on name features of images; no vocabulary is as large."""
_STRIDE = 1 << 16
"""Most tokens of a frame."""
_KEPT_BYTES = 256 << 20


class ImageFrame:
    """A frame's numbers (`attachments.images`), and its features, [tokens, …], while they are those of the weights."""

    def __init__(self, number: int, values: Tensor, grid: tuple[int, int]) -> None:
        self.number, self.values, self.grid = number, values, grid
        self.features: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """A prompt with images.

    Attributes:
        ids: in which images' tokens name their features.
        frames: the images' frames, which the request holds.
        axes: [P, 3], the tokens' positions, where they have three axes.
        last: [P], the last token that each one sees, where an image's see each other both ways.
    """

    ids: list[int]
    frames: tuple[ImageFrame, ...]
    axes: NDArray[np.int64] | None
    last: NDArray[np.int64] | None = None

    def positions(self, start: int, end: int) -> NDArray[np.int64] | None:
        """The positions of a path's tokens, [end - start, 3]; behind the prompt there is text."""
        if self.axes is None:
            return None
        count = len(self.axes)
        behind = np.arange(max(start, count), max(end, count)) - count + self.axes.max() + 1
        return np.concatenate([self.axes[start:end], np.repeat(behind[:, None], 3, 1)])

    def ahead(self, place: int, start: int, end: int) -> list[tuple[int, NDArray[np.int64]]]:
        """The last tokens that a path's tokens see, as `ModelRunner.step` takes them; see `placed`."""
        return [] if self.last is None or start >= len(self.last) else [(place, self.last[start:end])]

    def without_cut(self, start: int, count: int) -> int:
        """About `count` of the tokens from `start` on, so that an image's, which see each other, are in one step."""
        if self.last is None or start + count > len(self.last):
            return count
        end = int(self.last[start + count - 1]) + 1
        first = int(np.searchsorted(self.last, end - 1))  # of the tokens that see as far, the image's first
        return count if end == start + count else first - start if first > start else end - start

    def placed(self, place: int, start: int, end: int) -> list[tuple[int, NDArray[np.int64]]]:
        """The positions of a path's tokens, computed from `place` of a step on, as `ModelRunner.step` takes them."""
        found = self.positions(start, end)
        return [] if found is None else [(place, found)]


class ImageStore:
    """The frames that a model's prompts have.

    Args:
        model: of a known vision-language family.
    """

    def __init__(self, model: Any) -> None:
        self.trunk: Any = model.base_model
        self.token: int = self.trunk.config.image_token_id
        self.encoded = 0
        self._next = itertools.count()
        self._by_digest: WeakValueDictionary[bytes, ImageFrame] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, ImageFrame] = WeakValueDictionary()
        self._recent: OrderedDict[int, ImageFrame] = OrderedDict()
        self._bytes = 0

    def see(self, ids: list[int], attached: Sequence[Placed]) -> SeenPrompt:
        """The prompt as it is computed.

        Args:
            ids: the whole path.
            attached: what its nodes carry, and where they begin.

        Raises:
            InvalidInput: an image is not of this model's processor, or its tokens are not there.
        """
        named, held, three, both = list(ids), list[ImageFrame](), False, False
        place, grids = np.full(len(ids), -1), np.zeros((len(ids), 2), dtype=np.int64)
        for start, kind, data in attached:
            if kind != images.NAME:
                raise InvalidInput(f"engine=local takes images with a prompt, not attachments of the kind {kind!r}")
            found = images.unpack(data)
            self._check(found)
            three, both = three or found.axes, both or found.both
            at = [place for place in range(start, len(ids)) if ids[place] == self.token][: found.count]
            if len(at) < found.count:
                raise InvalidInput(f"images need {found.count} placeholder tokens (id {self.token}), not {len(at)}")
            places = iter(at)
            for digest, values, grid in zip(found.digests(), found.frames, found.grids, strict=True):
                frame = self._frame(digest, values, grid)
                held.append(frame)
                for number, token in enumerate(itertools.islice(places, math.prod(grid))):
                    named[token] = FIRST + frame.number * _STRIDE + number
                    place[token], grids[token] = number, grid
        last = images.last_seen(place, grids) if both else None
        return SeenPrompt(named, tuple(held), _axes(place, grids) if three else None, last)

    def _check(self, found: images.ImageInputs) -> None:
        family = vision.require_family(self.trunk)
        if found.both != family.both:
            raise InvalidInput("an image's tokens see each other both ways, or not, and the model's are the other kind")
        for frame, grid in zip(found.frames, found.grids, strict=True):
            own = family.shape(self.trunk.config, grid)
            if found.token != self.token or frame.shape != own or math.prod(grid) > _STRIDE:
                raise InvalidInput(
                    f"an image of {grid} tokens (id {found.token}) has frames of {frame.shape}; the model's id is "
                    f"{self.token}, and its frames are {own or 'of another number of tokens'}"
                )

    def _frame(self, digest: bytes, values: NDArray[np.float32], grid: tuple[int, int]) -> ImageFrame:
        frame = self._by_digest.get(digest)
        if frame is None:
            frame = ImageFrame(next(self._next), torch.from_numpy(np.array(values)), grid)
            self._by_digest[digest] = self._by_number[frame.number] = frame
        if frame.number not in self._recent:
            self._bytes += frame.values.nbytes
            self._recent[frame.number] = frame
        self._recent.move_to_end(frame.number)
        while self._bytes > _KEPT_BYTES and len(self._recent) > 1:
            self._bytes -= self._recent.popitem(last=False)[1].values.nbytes
        return frame

    def forget(self) -> None:
        """Drop all features: the weights changed."""
        for frame in list(self._by_number.values()):
            frame.features = None

    def inputs(self, tokens_N: Tensor) -> dict[str, Any]:
        """The language model's inputs for a step's tokens."""
        at = torch.nonzero(tokens_N >= FIRST).flatten()
        if not len(at):
            return {"inputs_embeds": self.trunk.get_input_embeddings()(tokens_N[None])}
        feature = tokens_N[at] - FIRST
        real = tokens_N.clone()
        real[at] = self.token
        numbers, which = torch.unique(feature // _STRIDE, return_inverse=True)
        of_frame = [self._features(number) for number in numbers.tolist()]
        starts = np.concatenate(([0], np.cumsum([len(one) for one in of_frame])[:-1]))
        index = torch.from_numpy(starts).to(at.device)[which] + feature % _STRIDE
        return vision.insert(self.trunk, real[None], at, torch.cat(of_frame)[index])

    def _features(self, number: int) -> Tensor:
        frame = self._by_number[number]
        if frame.features is None:
            device = next(self.trunk.parameters()).device
            values = frame.values[None] if frame.values.ndim == 3 else frame.values
            frame.features = vision.features(self.trunk, values.to(device), [frame.grid])
            self.encoded += 1
        return frame.features


def _axes(place: NDArray[np.int64], grid: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions along a path."""
    shift = images.shift_of(place, grid)
    return images.axes_of(np.arange(len(place)), np.cumsum(shift) - shift, place, grid)

"""Images of a forest, as fields: `images`, each distinct frame once, and each token's place and grid in its frame.

While sessions merge into a tree, a placeholder token's key names the feature that stands for it: the frame, by content,
and the place in it. So tokens of two images are never merged, and those of one image are, on whatever path they lie.
Then the ids become the placeholder's again. Only placeholder tokens have a frame in `images`. Where the model's family
counts positions with three axes, `image_axes` has them; where a frame's tokens see each other both ways, `block` has
the first of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.attachments import images
from agentrl.errors import InvalidInput
from agentrl.models.vision import PlacedFrames
from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.types import Node

FRAMES, PLACE, GRID, AXES, BLOCK = "images", "image_place", "image_grid", "image_axes", "block"
FIRST = 1 << 28
"""Ids from here on name features of images; no vocabulary is as large."""


class Pictures:
    """The distinct frames of a batch, numbered in order of first occurrence."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._frames: list[NDArray[np.float32]] = []
        self._grids: list[tuple[int, int]] = []
        self._features = [0]
        self._kind: tuple[int, tuple[int, ...]] | None = None
        self._both = False

    def __bool__(self) -> bool:
        return bool(self._known)

    def key(self, token_ids: NDArray[np.int64], node: Node) -> NDArray[np.int64]:
        """A node's ids, in which placeholder tokens name their features.

        Raises:
            InvalidInput: its images don't fit its tokens or the batch's others, or one of their tokens is trained.
        """
        found = images.unpack(node.attachments[images.NAME])
        self._both = found.both
        shapes = {frame.shape[1:] if found.axes else frame.shape for frame in found.frames}
        for shape in shapes:
            self._kind = self._kind or (found.token, shape)
            if (found.token, shape) != self._kind:
                raise InvalidInput(
                    f"images of one batch have different placeholders or sizes: {self._kind} and {found.token, shape}"
                )
        at = found.places(token_ids)
        if np.asarray(node.trainable, dtype=bool)[at].any():
            raise InvalidInput(f"node {node.id}: tokens of an image are to be trained, which nobody sampled")
        names = []
        for digest, frame, grid in zip(found.digests(), found.frames, found.grids, strict=True):
            if digest not in self._known:
                self._known[digest] = len(self._frames)
                self._frames.append(frame)
                self._grids.append(grid)
                self._features.append(self._features[-1] + math.prod(grid))
            number = self._known[digest]
            names.append(np.arange(self._features[number], self._features[number + 1]))
        named = token_ids.copy()
        named[at] = FIRST + np.concatenate(names)
        return named

    def patches(self, key: NDArray[np.int64]) -> int:
        """The number of patches of the frames that begin among some keys, each frame once."""
        numbers = np.flatnonzero(np.isin(self._features[:-1], key[key >= FIRST] - FIRST))
        return sum(images.patches_in(self._frames[number].shape) for number in numbers.tolist())

    def restore(
        self, token_ids: Tensor, depth: Tensor, path_sum: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, dict[str, Column | SharedColumn]]:
        """A forest's token ids without names of features, and its images as fields, where it has some.

        Args:
            token_ids: [T], with names.
            depth: [T], the tokens' places on their paths.
            path_sum: see `Forest.path_sum`.
        """
        named = token_ids >= FIRST
        if self._kind is None or not bool(named.any()):
            return token_ids, {}
        feature = torch.where(named, token_ids - FIRST, 0)
        starts = torch.tensor(self._features[:-1])
        frame = torch.searchsorted(starts, feature, right=True) - 1
        used, number = torch.unique(frame[named], return_inverse=True)
        frames = [self._frames[int(one)] for one in used]
        patches = frames[0].ndim == 2
        lengths = torch.tensor([len(one) if patches else 1 for one in frames])
        values = torch.from_numpy(np.concatenate(frames) if patches else np.stack(frames))
        start, length = torch.zeros_like(feature), torch.zeros_like(feature)
        start[named], length[named] = (lengths.cumsum(0) - lengths)[number], lengths[number]
        place = torch.where(named, feature - starts[frame], -1)
        grid = torch.where(named[:, None], torch.tensor(self._grids)[frame], 0)
        fields: dict[str, Column | SharedColumn] = {
            FRAMES: SharedColumn(values, start, length),
            PLACE: Column(place, None, -1),
            GRID: Column(grid),
        }
        if patches:
            shift = images.shift_of(place.numpy(), grid.numpy())
            before = path_sum(torch.from_numpy(shift)).numpy() - shift
            fields[AXES] = Column(torch.from_numpy(images.axes_of(depth.numpy(), before, place.numpy(), grid.numpy())))
        if self._both:
            fields[BLOCK] = Column(torch.where(named, torch.arange(len(place)) - place, -1), None, -1)
        return torch.where(named, self._kind[0], token_ids), fields


def images_of(fields: Mapping[str, Column | SharedColumn]) -> PlacedFrames | None:
    """A forest's frames, and which tokens they are; None where it has no images."""
    frames, place, grid = fields.get(FRAMES), fields.get(PLACE), fields.get(GRID)
    if not isinstance(frames, SharedColumn) or not isinstance(place, Column) or not isinstance(grid, Column):
        return None
    start = torch.where(frames.length > 0, frames.start, -1)
    return PlacedFrames(frames.values, start, frames.length, place.values, grid.values)


def images_along(
    fields: Mapping[str, Column | SharedColumn], token_ids: Tensor, path: Tensor
) -> images.ImageInputs | None:
    """The images of a path's tokens, in order, as one node would carry them; None where it has none.

    Args:
        fields: the forest's.
        token_ids: [T], the forest's.
        path: indices of tokens, from a root on.
    """
    placed = images_of(fields)
    first = path[placed.place[path] == 0].tolist() if placed is not None else []
    if placed is None or not first:
        return None
    frames = []
    for token in first:
        values = placed.values[int(placed.start[token]) :][: int(placed.length[token])].numpy()
        frames.append(values if values.ndim == 2 else values[0])
    grids = tuple((rows, columns) for rows, columns in placed.grid[first].tolist())
    return images.ImageInputs(int(token_ids[first[0]]), b"\0" * 16, tuple(frames), grids, BLOCK in fields)


def patches_of(fields: Mapping[str, Column | SharedColumn]) -> int:
    """The number of patches that a tower computes for a forest; of pictures an estimate."""
    frames = fields.get(FRAMES)
    if not isinstance(frames, SharedColumn):
        return 0
    shape = frames.values.shape
    return shape[0] if len(shape) == 2 else shape[0] * images.patches_in(tuple(shape[1:]))


def positions_of(fields: Mapping[str, Column | SharedColumn], depth: Tensor) -> Tensor:
    """The positions that a model is given: [1, T], or with three axes [3, 1, T]."""
    axes = fields.get(AXES)
    return axes.values.T[:, None] if isinstance(axes, Column) else depth[None]


def last_seen(fields: Mapping[str, Column | SharedColumn]) -> Tensor | None:
    """The last token of the row that each token sees, [T]; None where that is itself, as without the field `block`."""
    block, place, grid = fields.get(BLOCK), fields.get(PLACE), fields.get(GRID)
    if not isinstance(block, Column) or not isinstance(place, Column) or not isinstance(grid, Column):
        return None
    found = images.last_seen(place.values.cpu().numpy(), grid.values.cpu().numpy())
    return torch.from_numpy(found).to(block.values.device)


def check_blocks(
    fields: Mapping[str, Column | SharedColumn], parents: Sequence[int], node_id: Tensor, weight: Tensor
) -> str:
    """The first token whose block breaks a rule, and which one, as a clause; "" where none does.

    A block is tokens one behind the other along one path, all of one node; none is trained or a branching point.

    Args:
        fields: the forest's.
        parents: [T], -1 for a root.
        node_id: [T].
        weight: [T].
    """
    column, last = fields.get(BLOCK), last_seen(fields)
    if not isinstance(column, Column) or last is None:
        return ""
    block, children = column.values.tolist(), Counter(parents)
    for token, (first, end) in enumerate(zip(block, last.tolist(), strict=True)):
        if first < 0:
            continue
        if not (first <= token <= end < len(block) and set(block[first : end + 1]) == {first}):
            return f"{BLOCK}[{token}] is not the first of its image's tokens"
        if token > first and (parents[token] != token - 1 or int(node_id[token]) != int(node_id[first])):
            return f"{BLOCK}[{token}] reaches beyond its node"
        if children[token] > 1 or float(weight[token]) > 0:
            return f"{BLOCK}[{token}] is of a token that {'branches' if children[token] > 1 else 'is trained'}"
    return ""


def check_axes(fields: Mapping[str, Column | SharedColumn], parents: Sequence[int]) -> int | None:
    """The first token whose position is not what the tokens before it on its path make it; None where all are.

    Args:
        fields: the forest's.
        parents: [T], -1 for a root.
    """
    axes, place, grid = fields.get(AXES), fields.get(PLACE), fields.get(GRID)
    if not isinstance(axes, Column) or not isinstance(place, Column) or not isinstance(grid, Column):
        return None
    begin, behind = [0] * len(parents), [0] * len(parents)
    rows = zip(parents, place.values.tolist(), grid.values.tolist(), axes.values.tolist(), strict=True)
    for token, (parent, at, (high, wide), found) in enumerate(rows):
        inside = at > 0 and parent >= 0
        begin[token] = begin[parent] if inside else behind[parent] if parent >= 0 else 0
        behind[token] = begin[token] + (1 if at < 0 else max(high, wide))
        row, column = (0, 0) if at < 0 else divmod(at, wide)
        if found != [begin[token], begin[token] + row, begin[token] + column]:
            return token
    return None

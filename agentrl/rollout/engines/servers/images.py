"""Images of a server's prompts: what nodes carry (`attachments.images`), checked by the model's facts, and placed.

Servers get the numbers that the model's processor made once, never pictures: nothing is resized a second time, and the
prompt keeps our token ids, of which a server only learns which ones stand for an image. SGLang takes them by an
extension of ours, vLLM by the `features` of its token route, where an item is its own msgpack.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.attachments import images
from agentrl.errors import EngineError, InvalidInput
from agentrl.types import Capabilities, Placed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""Models, by model_type, whose images servers take."""
PREFIX = "agentrl-images:"
"""The beginning of an SGLang request's `image_data` that `sglang_extension` reads."""
FORGOTTEN = "agentrl-images: forgotten"
"""The beginning of SGLang's error for images whose numbers were left out and are not held any more."""
_REMEMBERED = 1 << 14  # digests
_RAW = 3
"""The code of msgpack's extension type by which vLLM 0.32 sends a tensor's bytes (its `CUSTOM_TYPE_RAW_VIEW`)."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image of a prompt.

    Attributes:
        offset: the place of its first placeholder token; its others follow.
        grid: rows and columns of its placeholder tokens.
        patches: float32, [patches, values].
        digest: equal where the tower's features are.
        merged: patches of a token's side.
    """

    offset: int
    grid: tuple[int, int]
    patches: NDArray[np.float32]
    digest: bytes
    merged: int

    @property
    def count(self) -> int:
        """The number of its placeholder tokens."""
        return math.prod(self.grid)

    @property
    def sides(self) -> tuple[int, int, int]:
        """Frames, rows and columns of its patches, as servers name them."""
        return 1, self.grid[0] * self.merged, self.grid[1] * self.merged


@dataclass(frozen=True, slots=True)
class ServedVision:
    """The facts of a model that sees by which its prompts' images are checked.

    Attributes:
        family: its model_type.
        token: the placeholder token's id.
        merged: patches of a token's side.
        values: numbers of a patch.
        interleaved: `mrope_interleaved` of its settings: whether neighbouring angles are of different axes.
    """

    family: str
    token: int
    merged: int
    values: int
    interleaved: bool = False

    @property
    def refusal(self) -> str:
        """The reason for which servers place this model's tokens otherwise than its trainer; '' where there is none."""
        if self.family == "qwen3_vl" and not self.interleaved:
            return "its config.json lacks rope_parameters.mrope_interleaved=true, without which other angles are turned"
        return ""

    @classmethod
    def read(cls, folder: Path) -> ServedVision | None:
        """Read a model's folder; None where it sees no images, or is of no family whose images servers take."""
        config: Mapping[str, Any] = json.loads((folder / "config.json").read_text())
        family = config.get("model_type")
        if family not in FAMILIES or "image_token_id" not in config:
            return None
        seen = config.get("vision_config") or {}
        side = seen.get("patch_size", 16 if family == "qwen3_vl" else 14)
        channels = seen.get("in_channels", seen.get("in_chans", 3))
        values = channels * seen.get("temporal_patch_size", 2) * side**2
        text = config.get("text_config") or config
        rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
        merged, interleaved = int(seen.get("spatial_merge_size", 2)), bool(rope.get("mrope_interleaved"))
        return cls(family, int(config["image_token_id"]), merged, int(values), interleaved)

    def place(self, ids: Sequence[int], attached: Sequence[Placed]) -> tuple[PlacedImage, ...]:
        """The images of a prompt.

        Args:
            ids: the whole path.
            attached: what its nodes carry, and where they begin.

        Raises:
            InvalidInput: an image is not of this model's processor, or its tokens are not there.
        """
        found = list[PlacedImage]()
        for start, kind, data in attached:
            if kind != images.NAME:
                raise InvalidInput(f"servers take attachments of the kind {images.NAME!r} with a prompt, not {kind!r}")
            inputs, at = images.unpack(data), start
            for frame, grid, digest in zip(inputs.frames, inputs.grids, inputs.digests(), strict=True):
                expected = (math.prod(grid) * self.merged**2, self.values)
                if inputs.token != self.token or frame.shape != expected:
                    raise InvalidInput(
                        f"an image of {grid} tokens (id {inputs.token}) has patches of {frame.shape}; the model's id "
                        f"is {self.token}, and its patches are {expected}"
                    )
                at = next((place for place in range(at, len(ids)) if ids[place] == self.token), len(ids))
                image = PlacedImage(at, grid, frame, digest, self.merged)
                there = sum(token == self.token for token in ids[at : at + image.count])
                if there != image.count:
                    raise InvalidInput(
                        f"an image of {grid} tokens needs {image.count} placeholder tokens (id {self.token}) in a row "
                        f"from place {at} of the prompt on, and {there} of them are there"
                    )
                found.append(image)
                at += image.count
        return tuple(found)


def place_images(
    vision: ServedVision | None, limits: Capabilities, ids: Sequence[int], attached: Sequence[Placed], why: str = ""
) -> tuple[PlacedImage, ...]:
    """The images of a prompt, for a server with these capabilities; `why` it takes none, where it does not.

    Raises:
        InvalidInput: it takes none, or they do not fit the model or the prompt.
    """
    if not attached:
        return ()
    if vision is None or images.NAME not in limits.inputs:
        why = why or f"it takes those of {' and '.join(FAMILIES)} alone"
        raise InvalidInput(f"engine={limits.name} takes no images with this prompt ({why}); engine=local does")
    return vision.place(ids, attached)


def find_axes(seen: Sequence[PlacedImage], length: int) -> NDArray[np.int64]:
    """The positions of a path's tokens, [length, 3]; behind its last image there is text."""
    import numpy as np

    place, grid = np.full(length, -1), np.zeros((length, 2), dtype=np.int64)
    for image in seen:
        at = slice(image.offset, image.offset + image.count)
        place[at], grid[at] = np.arange(image.count), image.grid
    shift = images.shift_of(place, grid)
    return images.axes_of(np.arange(length), np.cumsum(shift) - shift, place, grid)


class HeldImages:
    """Digests of the images that a server keeps the numbers of, which are sent once."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __contains__(self, digest: object) -> bool:
        return digest in self._digests

    def note(self, seen: Sequence[PlacedImage]) -> None:
        """Note that the server has had these."""
        if len(self._digests) > _REMEMBERED:
            self._digests.clear()
        self._digests.update(one.digest for one in seen)

    def forget(self, seen: Sequence[PlacedImage]) -> bool:
        """Take a request with these to have failed since the server has forgotten some; False where none was held."""
        some = any(one.digest in self._digests for one in seen)
        self._digests.clear()
        return some


def pack_for_sglang(seen: Sequence[PlacedImage], length: int, held: Container[bytes] = ()) -> str:
    """The `image_data` of a request whose path has `length` tokens: a header in JSON, then numbers in base64.

    Images that the server holds have no numbers there, and a width of 0.
    """
    sent = [one for one in seen if one.digest not in held]
    told = [
        {
            "offset": one.offset,
            "count": one.count,
            "sides": one.sides,
            "width": 0 if one.digest in held else one.patches.shape[1],
            "digest": one.digest.hex(),
        }
        for one in seen
    ]
    numbers = [find_axes(seen, length).T.astype("<i4").tobytes()]
    numbers += [one.patches.astype("<f4").tobytes() for one in sent]
    return f"{PREFIX}{json.dumps(told)}\n{base64.b64encode(b''.join(numbers)).decode()}"


def pack_for_vllm(seen: Sequence[PlacedImage], held: Container[bytes] = ()) -> dict[str, Any]:
    """The `features` of a request: where each image's tokens are, its digest, and its numbers unless they are held."""
    return {
        "mm_hashes": {"image": [one.digest.hex() for one in seen]},
        "mm_placeholders": {"image": [{"offset": one.offset, "length": one.count} for one in seen]},
        "kwargs_data": {"image": [None if one.digest in held else _pack_item(one) for one in seen]},
    }


def _pack_item(image: PlacedImage) -> str:
    """An image as vLLM's own processors would give it: two tensors, and how those of several images are joined.

    But its numbers are "kept on the CPU", from which towers of these models take them. Others vLLM 0.32 leaves out of a
    request whose prefix is cached, and then it dies when it has to compute that request again.
    """
    from msgspec import msgpack

    shape = image.patches.shape
    numbers, sides = image.patches.astype("<f4").tobytes(), struct.pack("<3q", *image.sides)
    rows, stacked = {"slices": [(0, shape[0], None)], "dim": 0, "keep_on_cpu": True}, {"keep_on_cpu": True}
    item = {
        "pixel_values": {"data": ("float32", shape, msgpack.Ext(_RAW, numbers)), "field": ("flat", rows)},
        "image_grid_thw": {"data": ("int64", (3,), msgpack.Ext(_RAW, sides)), "field": ("batched", stacked)},
    }
    return base64.b64encode(msgpack.encode(item)).decode()


def check_expansion(seen: Sequence[PlacedImage], length: int, found: int | None, server: str) -> None:
    """Refuse a prompt with images that has another number of tokens at a server than it was sent with.

    Raises:
        EngineError: the server expanded placeholders, or left some out.
    """
    if seen and found != length:
        raise EngineError(
            f"{server} counts {found} tokens in a prompt with {len(seen)} images of which {length} were sent: its "
            "placeholders are not those of the prompt"
        )

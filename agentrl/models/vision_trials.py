"""Vision-language models on trial: small towers, random images, and what transformers' own forward takes of images.

A proof of an architecture (`agentrl.train.trainers.proof`) compares with that forward, which shares neither the places
of images, nor their positions, nor their encoding with `agentrl.models.vision`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.attachments.images import ImageInputs
from agentrl.models.vision_families import FAMILIES, Grid

WIDTH, HEADS, SIDE = 32, 2, 2
"""Of a small tower: its width, its heads, and the tokens of an image's side."""


@dataclass(frozen=True, slots=True)
class VisionTrial:
    """The trial of a family.

    Attributes:
        narrow: makes a configuration's tower small, so that an image of fixed size has SIDE x SIDE tokens.
        grids: of two images, by a configuration, as different as the family allows.
        given: what transformers' forward takes, of frames, their grids and which tokens are of images, [1, T].
    """

    narrow: Callable[[Any], None]
    grids: Callable[[Any], tuple[Grid, Grid]]
    given: Callable[[Sequence[Tensor], Sequence[Grid], Tensor], dict[str, Tensor]]


def _narrow_idefics(config: Any) -> None:
    seen = config.vision_config
    _set(seen, num_hidden_layers=2, num_attention_heads=HEADS, hidden_size=WIDTH, intermediate_size=2 * WIDTH)
    seen.image_size = seen.patch_size * config.scale_factor * SIDE


def _idefics_grids(config: Any) -> tuple[Grid, Grid]:
    seen = config.vision_config
    grid = (1, (seen.image_size // seen.patch_size) ** 2 // config.scale_factor**2)
    return grid, grid


def _idefics_inputs(frames: Sequence[Tensor], grids: Sequence[Grid], seen: Tensor) -> dict[str, Tensor]:
    together = torch.stack(list(frames))[None]
    return {"pixel_values": together[:, :, :3], "pixel_attention_mask": together[:, :, 3].bool()}


def _narrow_qwen(config: Any) -> None:
    seen = config.vision_config
    _set(seen, depth=3, hidden_size=WIDTH, num_heads=HEADS, intermediate_size=2 * WIDTH)
    _set(seen, out_hidden_size=config.get_text_config().hidden_size)
    _set(seen, fullatt_block_indexes=[1], window_size=seen.patch_size * seen.spatial_merge_size * SIDE)
    _set(seen, deepstack_visual_indexes=[0])


def _patch_grids(config: Any) -> tuple[Grid, Grid]:
    return (SIDE, SIDE + 1), (1, 2 * SIDE)


def _qwen_inputs(frames: Sequence[Tensor], grids: Sequence[Grid], seen: Tensor) -> dict[str, Tensor]:
    merged = [
        round((len(patches) / (rows * columns)) ** 0.5) for patches, (rows, columns) in zip(frames, grids, strict=True)
    ]
    sides = [[1, rows * by, columns * by] for (rows, columns), by in zip(grids, merged, strict=True)]
    return {
        "pixel_values": torch.cat(list(frames)),
        "image_grid_thw": torch.tensor(sides),
        "mm_token_type_ids": seen.int(),
    }


def _narrow_llava(config: Any) -> None:
    seen, layer = config.vision_config, config.vision_feature_layer
    deepest = max(abs(one) for one in (layer if isinstance(layer, list) else [layer]))
    _set(seen, num_hidden_layers=min(seen.num_hidden_layers, max(3, deepest)))
    _set(seen, num_attention_heads=HEADS, hidden_size=WIDTH, intermediate_size=2 * WIDTH)
    seen.image_size = seen.patch_size * SIDE


def _llava_grids(config: Any) -> tuple[Grid, Grid]:
    patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    grid = (1, patches if config.vision_feature_select_strategy == "default" else patches + 1)
    return grid, grid


def _picture_inputs(frames: Sequence[Tensor], grids: Sequence[Grid], seen: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": torch.stack(list(frames))}


def _narrow_gemma(config: Any) -> None:
    seen = config.vision_config
    _set(seen, num_hidden_layers=2, num_attention_heads=HEADS, hidden_size=WIDTH, intermediate_size=2 * WIDTH)
    config.mm_tokens_per_image = SIDE**2
    seen.image_size = 2 * SIDE * seen.patch_size


def _gemma_grids(config: Any) -> tuple[Grid, Grid]:
    grid = (1, config.mm_tokens_per_image)
    return grid, grid


def _gemma_inputs(frames: Sequence[Tensor], grids: Sequence[Grid], seen: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": torch.stack(list(frames)), "token_type_ids": seen.int()}


def _set(config: Any, **values: Any) -> None:
    for name, value in values.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)


_IDEFICS = VisionTrial(_narrow_idefics, _idefics_grids, _idefics_inputs)
_QWEN = VisionTrial(_narrow_qwen, _patch_grids, _qwen_inputs)
_LLAVA = VisionTrial(_narrow_llava, _llava_grids, _picture_inputs)
TRIALS = {
    "idefics3": _IDEFICS,
    "smolvlm": _IDEFICS,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "llava": _LLAVA,
    "gemma3": VisionTrial(_narrow_gemma, _gemma_grids, _gemma_inputs),
    "glm4v": _QWEN,
    "glm4v_moe": _QWEN,
}
"""By model_type in config.json: the keys of `FAMILIES`."""


class RandomImages:
    """Random images that a configuration's model can see."""

    def __init__(self, config: Any) -> None:
        self.config, self.token = config, int(config.image_token_id)

    def draw(self, rng: random.Random) -> ImageInputs:
        """Two frames; of frames with a mask, the second's lower half is padding."""
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        family = FAMILIES[self.config.model_type]
        grids = TRIALS[self.config.model_type].grids(self.config)
        shapes = [family.shape(self.config, grid) for grid in grids]
        frames = [numbers.standard_normal(shape).astype(np.float32) for shape in shapes]
        if len(shapes[0]) == 3 and shapes[0][0] == 4:
            for frame in frames:
                frame[3] = 1
            frames[1][:, shapes[1][1] // 2 :] = 0
        return ImageInputs(self.token, b"\0" * 16, tuple(frames), grids, family.both)


def own_inputs(model: Any, ids: Tensor, shown: ImageInputs | None) -> dict[str, Tensor]:
    """The arguments that transformers' own forward takes for a row with images."""
    if shown is None:
        return {"input_ids": ids}
    frames = [torch.from_numpy(np.array(frame)).to(ids.device, model.dtype) for frame in shown.frames]
    given = TRIALS[model.config.model_type].given(frames, shown.grids, ids == shown.token)
    return {"input_ids": ids, **{name: value.to(ids.device) for name, value in given.items()}}

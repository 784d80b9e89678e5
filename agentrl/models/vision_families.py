"""The families of vision-language models that are known, by `model_type`: data about each, and how its tower is run.

Image tokens are causal, but for families that say otherwise (`both`). Families that see patches have positions with
three axes (`attachments.images`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Grid = tuple[int, int]


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """A family, by what sets it apart from others.

    Attributes:
        text: the trunk's attribute that is the language model.
        encode: the projected features of frames: the trunk, the frames' numbers and their grids to [tokens, d]; where
            features go into several layers, one behind the other, [tokens, levels * d].
        shape: of a frame with a grid, by the model's configuration.
        around: what a renderer writes before and behind an image's placeholders, where the processor does not.
        both: whether a frame's tokens see each other both ways.
        files: beginnings of tensors' names in transformers, and in files where those are others.
    """

    text: str
    encode: Callable[[Any, Tensor, list[Grid]], Tensor]
    shape: Callable[[Any, Grid], tuple[int, ...]]
    around: tuple[str, str] = ("", "")
    both: bool = False
    files: tuple[tuple[str, str], ...] = ()

    def names_in_files(self, name: str) -> list[str]:
        """Return the names that files may have for a tensor that transformers calls `name`, besides that one."""
        return [theirs + name.removeprefix(own) for own, theirs in self.files if name.startswith(own)]


def _encode_idefics(trunk: Any, frames: Tensor, grids: list[Grid]) -> Tensor:
    """[n, 4, height, width], colours and mask."""
    size = trunk.config.vision_config.patch_size
    patches = (frames[:, 3] > 0).unfold(1, size, size).unfold(2, size, size).any(-1).any(-1)
    hidden = trunk.vision_model(pixel_values=frames[:, :3].to(trunk.dtype), patch_attention_mask=patches)
    found: Tensor = trunk.connector(hidden.last_hidden_state).flatten(0, 1)
    return found


def _idefics_shape(config: Any, grid: Grid) -> tuple[int, ...]:
    side = config.vision_config.image_size
    per_frame = (side // config.vision_config.patch_size) ** 2 // config.scale_factor**2
    return (4, side, side) if math.prod(grid) == per_frame else ()


def _encode_qwen(trunk: Any, patches: Tensor, grids: list[Grid]) -> Tensor:
    """[patches, values], one image behind the other."""
    import torch

    merged = trunk.visual.spatial_merge_size
    sides = torch.tensor([[1, rows * merged, columns * merged] for rows, columns in grids], device=patches.device)
    out = trunk.visual(patches.to(trunk.dtype), grid_thw=sides)
    return torch.cat([out.pooler_output, *(getattr(out, "deepstack_features", None) or ())], -1)


def _qwen_shape(config: Any, grid: Grid) -> tuple[int, ...]:
    seen = config.vision_config
    values = seen.in_channels * seen.temporal_patch_size * seen.patch_size**2
    return math.prod(grid) * seen.spatial_merge_size**2, values


def _encode_llava(trunk: Any, frames: Tensor, grids: list[Grid]) -> Tensor:
    """[n, 3, height, width]."""
    import torch

    return torch.cat(list(trunk.get_image_features(frames.to(trunk.dtype)).pooler_output))


def _llava_shape(config: Any, grid: Grid) -> tuple[int, ...]:
    side = config.vision_config.image_size
    patches = (side // config.vision_config.patch_size) ** 2
    count = patches if config.vision_feature_select_strategy == "default" else patches + 1
    return (3, side, side) if math.prod(grid) == count else ()


def _encode_gemma(trunk: Any, frames: Tensor, grids: list[Grid]) -> Tensor:
    """[n, 3, height, width]."""
    found: Tensor = trunk.get_image_features(frames.to(trunk.dtype)).pooler_output.flatten(0, 1)
    return found


def _gemma_shape(config: Any, grid: Grid) -> tuple[int, ...]:
    side = config.vision_config.image_size
    return (3, side, side) if math.prod(grid) == config.mm_tokens_per_image else ()


_IDEFICS = VisionFamily("text_model", _encode_idefics, _idefics_shape)
_QWEN25_FILES = (("model.visual.", "visual."), ("model.language_model.", "model."))
_PARTED_FILES = (
    ("model.vision_tower.", "vision_tower."),
    ("model.vision_tower.", "vision_tower.vision_model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
)
_QWEN = VisionFamily("language_model", _encode_qwen, _qwen_shape, around=("<|vision_start|>", "<|vision_end|>"))
_LLAVA = VisionFamily("language_model", _encode_llava, _llava_shape, files=_PARTED_FILES)
_GEMMA = VisionFamily("language_model", _encode_gemma, _gemma_shape, both=True, files=_PARTED_FILES)
_GLM = VisionFamily("language_model", _encode_qwen, _qwen_shape, around=("<|begin_of_image|>", "<|end_of_image|>"))
FAMILIES = {
    "idefics3": _IDEFICS,
    "smolvlm": _IDEFICS,
    "qwen2_5_vl": replace(_QWEN, files=_QWEN25_FILES),
    "qwen3_vl": _QWEN,
    "llava": _LLAVA,
    "gemma3": _GEMMA,
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
}
"""By model_type in config.json."""
REFUSED = {
    "llava_onevision": "its processor cuts an image into tiles only where a conversation has no other: a second image "
    "would change the first one's tokens, and nothing could be continued token for token"
}
"""Families that can't be trained, by model_type, and why."""
TOWERS = ("vision_model", "visual", "vision_tower")
PROJECTORS = ("connector", "merger", "deepstack_merger_list", "multi_modal_projector")
"""Modules that are towers, and modules that are projectors, which may be within a tower."""

"""Vision-language models: how they are loaded, and how images become embeddings.

The tower and the projector run once for each distinct frame; tokens that share a frame, on whatever path, share its
features, and gradients add up there. Families are in `vision_families`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentrl.common.untrusted import read_json
from agentrl.errors import InvalidInput, InvalidWeights
from agentrl.models.loading import load_causal_lm, load_with_match, loadable_config
from agentrl.models.vision_families import FAMILIES, PROJECTORS, TOWERS, VisionFamily


def sees(folder: Path) -> bool:
    """Return whether a folder's model is of a known vision-language family, by its config.json alone."""
    return read_seeing_type(folder) is not None


def read_seeing_type(folder: Path) -> str | None:
    """Return the `model_type` of a folder whose model is of a known vision-language family; None for others."""
    try:
        kind = read_json((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return kind if kind in FAMILIES else None


def load_lm(folder: Path, dtype: Any, attention: str) -> Any:
    """The model of a Hugging Face folder: `load_vision_lm` where it sees, else `loading.load_causal_lm`."""
    return (load_vision_lm if sees(folder) else load_causal_lm)(folder, dtype, attention)


def load_vision_lm(folder: Path, dtype: Any, attention: str) -> Any:
    """A vision-language model, all of whose weights are from its files.

    Args:
        folder: of Hugging Face, of a known family (`sees`).
        dtype: torch's type of its weights.
        attention: transformers' name of the language model's attention implementation; the tower's is torch's own,
            but for `eager`, which is all of the model's.

    Raises:
        InvalidWeights: a tensor is missing, or of another shape.
        InvalidInput: transformers can't load it, or its weights are quantised.
    """
    from transformers import AutoModelForImageTextToText

    tower = "eager" if attention == "eager" else "sdpa"
    chosen: Any = {"": attention, "text_config": attention, "vision_config": tower}
    config = loadable_config(folder, seeing=True)
    model, found = load_with_match(lambda: AutoModelForImageTextToText, folder, config, dtype, chosen)
    if faults := found.faults(model):
        raise InvalidWeights(f"model={str(folder)!r}: its files don't hold the weights of its config.json: {faults}")
    return model


def family_of(trunk: Any) -> VisionFamily | None:
    """The family of a model without its head; None where it sees nothing."""
    family = FAMILIES.get(getattr(trunk.config, "model_type", ""))
    return family if family is not None and hasattr(trunk, family.text) else None


def require_family(trunk: Any) -> VisionFamily:
    """Return the family of a model without its head."""
    if (family := family_of(trunk)) is None:
        raise InvalidInput(f"model_type={getattr(trunk.config, 'model_type', None)!r} sees no images")
    return family


def language_of(trunk: Any) -> Any:
    """The part of a model without its head that computes hidden states from embeddings."""
    family = family_of(trunk)
    return trunk if family is None else getattr(trunk, family.text)


class PlacedFrames(NamedTuple):
    """The frames of a row of tokens, each distinct one once, and which tokens they are.

    Attributes:
        values: [N, …], the frames' numbers: one entry for each frame, or for each patch.
        start: [T], where in them the token's frame begins; -1 for text.
        length: [T], how many entries it has.
        place: [T], which of the frame's tokens it is; -1 for text.
        grid: [T, 2], rows and columns of the frame's tokens; 0 for text.
    """

    values: Tensor
    start: Tensor
    length: Tensor
    place: Tensor
    grid: Tensor


def features(trunk: Any, frames: Tensor, grids: list[tuple[int, int]]) -> Tensor:
    """The projected features of frames, one frame's tokens behind the other's: see `VisionFamily.encode`.

    Raises:
        InvalidInput: the model makes another number of tokens than the processor did.
    """
    found, expected = require_family(trunk).encode(trunk, frames, grids), sum(map(math.prod, grids))
    if len(found) != expected:
        raise InvalidInput(
            f"the model makes {len(found)} tokens of {len(grids)} frames, and the images were processed for {expected}"
        )
    return found


def embed(trunk: Any, token_ids: Tensor, placed: PlacedFrames) -> dict[str, Tensor | list[Tensor]]:
    """The inputs of the language model for a row of tokens, [1, T], some of which are images'.

    Raises:
        InvalidInput: a frame has another number of tokens here than where it was processed.
    """
    found = encode_placed(trunk, placed)
    if found is None:
        return {"inputs_embeds": trunk.get_input_embeddings()(token_ids)}
    return insert(trunk, token_ids, *found)


def encode_placed(trunk: Any, placed: PlacedFrames) -> tuple[Tensor, Tensor] | None:
    """The tokens of a row that are images', [n], and their features, [n, levels * d]; None where there are none."""
    at = torch.nonzero(placed.start >= 0).flatten()
    if not len(at):
        return None
    starts, frame = torch.unique(placed.start[at], return_inverse=True)
    first = at[torch.zeros_like(starts).scatter_reduce_(0, frame, torch.arange(len(at), device=at.device), "amax")]
    lengths, grids = placed.length[first], placed.grid[first]
    values = placed.values
    if int(lengths.sum()) != len(values):
        values = torch.cat([values[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
    seen = features(trunk, values, [(rows, columns) for rows, columns in grids.tolist()])
    count = grids.prod(1)
    return at, seen[(count.cumsum(0) - count)[frame] + placed.place[at]]


def insert(trunk: Any, token_ids: Tensor, at: Tensor, seen: Tensor) -> dict[str, Tensor | list[Tensor]]:
    """The inputs of the language model where features, [n, levels * d], stand at some places of a row.

    Features of the first level are embeddings; others are added behind the first layers (DeepStack, arXiv:2406.04334).
    """
    embedded: Tensor = trunk.get_input_embeddings()(token_ids)
    first, *levels = torch.split(seen.to(embedded.dtype), embedded.shape[-1], -1)
    made: dict[str, Tensor | list[Tensor]] = {"inputs_embeds": embedded.index_put((torch.zeros_like(at), at), first)}
    if levels:
        mask = torch.zeros_like(token_ids, dtype=torch.bool)
        mask[0, at] = True
        made |= {"visual_pos_masks": mask, "deepstack_visual_embeds": levels}
    return made


def of_vision(name: str) -> bool:
    """Return whether a weight is of the tower or the projector."""
    return is_fixed(name, "frozen")


def is_fixed(name: str, vision: str) -> bool:
    """Return whether a weight is fixed: of the tower (`projector`), or of the tower and the projector (`frozen`)."""
    parts = set(name.split("."))
    projects = not parts.isdisjoint(PROJECTORS)
    sees_pixels = not parts.isdisjoint(TOWERS)
    return {"full": False, "projector": sees_pixels and not projects, "frozen": sees_pixels or projects}[vision]

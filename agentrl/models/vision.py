"""Vision-language models: which families are known, how they are loaded, and how images become embeddings.

A family is here when its image tokens are causal and its positions one-dimensional, so that a forest of tokens is the
same forest with images: SmolVLM and Idefics3. The tower and the projector run once for each distinct frame; tokens that
share a frame, on whatever path, share its features, and gradients add up there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.common.untrusted import read_json
from agentrl.errors import InvalidInput, InvalidWeights
from agentrl.models.image_processor import FAMILIES
from agentrl.models.loading import load_with_match, read_config

TOWER, PROJECTOR = "vision_model", "connector"
"""The parts of a trunk of these families."""


def sees(folder: Path) -> bool:
    """Return whether a folder's model is of a known vision-language family, by its config.json alone."""
    try:
        return read_json((folder / "config.json").read_text()).get("model_type") in FAMILIES
    except (OSError, ValueError, AttributeError):
        return False


def load_vision_lm(folder: Path, dtype: Any, attention: str) -> Any:
    """A vision-language model, all of whose weights are from its files.

    Args:
        folder: of Hugging Face, of a known family (`sees`).
        dtype: torch's type of its weights.
        attention: transformers' name of the language model's attention implementation; the tower's is torch's own.

    Raises:
        InvalidWeights: a tensor is missing, or of another shape.
        InvalidInput: transformers can't load it.
    """
    from transformers import AutoModelForImageTextToText

    chosen: Any = {"": attention, "text_config": attention, "vision_config": "sdpa"}
    config = read_config(folder)
    model, found = load_with_match(lambda: AutoModelForImageTextToText, folder, config, dtype, chosen)
    if faults := found.faults(model):
        raise InvalidWeights(f"model={str(folder)!r}: its files don't hold the weights of its config.json: {faults}")
    return model


def features(trunk: Any, frames: Tensor) -> Tensor:
    """The projected features of frames: [n, 4, height, width] (colours and mask) to [n, tokens of a frame, d]."""
    size = trunk.config.vision_config.patch_size
    patches = (frames[:, 3] > 0).unfold(1, size, size).unfold(2, size, size).any(-1).any(-1)
    tower, projector = getattr(trunk, TOWER), getattr(trunk, PROJECTOR)
    hidden = tower(pixel_values=frames[:, :3].to(trunk.dtype), patch_attention_mask=patches).last_hidden_state
    found: Tensor = projector(hidden)
    return found


def embed(trunk: Any, token_ids: Tensor, frames: Tensor, frame: Tensor, place: Tensor) -> Tensor:
    """The embeddings of a row of tokens, some of which are images'.

    Args:
        trunk: a model of a known family without its head.
        token_ids: [1, T].
        frames: [n, 4, height, width], each distinct frame once.
        frame: [T], the frame that a token is of; -1 for text.
        place: [T], which of the frame's tokens it is.

    Raises:
        InvalidInput: a frame has another number of tokens here than where it was processed.
    """
    embedded: Tensor = trunk.get_input_embeddings()(token_ids)
    at = torch.nonzero(frame >= 0).flatten()
    if not len(at):
        return embedded
    seen = features(trunk, frames)
    if int(place[at].max()) >= seen.shape[1]:
        raise InvalidInput(
            f"the model makes {seen.shape[1]} tokens of a frame, and the images were processed for "
            f"{int(place[at].max()) + 1} or more"
        )
    values = seen[frame[at], place[at]].to(embedded.dtype)
    return embedded.index_put((torch.zeros_like(at), at), values)


def of_vision(name: str) -> bool:
    """Return whether a weight is of the tower or the projector."""
    return is_fixed(name, "frozen")


def is_fixed(name: str, vision: str) -> bool:
    """Return whether a weight is fixed: of the tower (`projector`), or of the tower and the projector (`frozen`)."""
    fixed = {"full": (), "projector": (TOWER,), "frozen": (TOWER, PROJECTOR)}[vision]
    return any(part in name.split(".") for part in fixed)

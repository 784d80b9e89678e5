"""Models that see on Megatron-core: tower and projector on the first stage, computed by transformers' own modules.

They are whole on every rank of that stage. Where tensor ranks share no sequence, each computes all frames and the same
gradients. Where ranks hold parts of a forest's tokens, each computes the frames of its own tokens, and the gradients
are summed over these ranks, as a norm's are.

The files' names of text and tower follow from the family of the text model (`with_images`), so that loading, exports,
checkpoints and optimizers need not know of images.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.models.loading import loadable_config, new_trunk
from agentrl.models.vision import PlacedFrames, encode_placed, sees
from agentrl.models.vision_families import FAMILIES
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.layouts import ParameterLayout, Whole

_BASE = "model."


def with_images(family: Family, folder: str | Path) -> Family:
    """The family of a folder's model that sees, from its text model's; unchanged where it sees nothing."""
    if not sees(Path(folder)):
        return family
    tower = _new_tower(Path(folder), torch.device("meta"))
    text = f"{_BASE}{FAMILIES[tower.config.model_type].text}."
    rows = {f"tower.{name}": Whole(_BASE + name) for name, _ in tower.named_parameters()}
    layer = {name: _rename(layout, text) for name, layout in family.layer.items()}
    outside = {name: _rename(layout, text) for name, layout in family.outside.items()}
    return replace(family, layer=layer, outside={**outside, **rows})


def put_tower(models: Sequence[Any], folder: str | Path) -> None:
    """Put tower and projector, with weights still to be loaded, on the first stage's chunk of a model that sees."""
    for model in models:
        if model.pre_process and sees(Path(folder)):
            model.tower = _new_tower(Path(folder), torch.device("cpu"), model.config.params_dtype)
            for parameter in model.tower.parameters():
                parameter.sequence_parallel = model.config.sequence_parallel


def place_images(model: Any, embedded: Tensor, placed: PlacedFrames) -> Tensor:
    """A first stage's embeddings, [L, 1, d], with the features of frames in the places of their tokens.

    Args:
        model: the stage's.
        embedded: of the tokens that this rank holds; under sequence parallelism a part of L.
        placed: the frames of all L tokens.
    """
    if not hasattr(model, "tower"):
        raise InvalidInput("the sessions hold images, and the model sees none")
    if model.config.sequence_parallel:
        ranks, rank = (
            parallel_state.get_tensor_model_parallel_world_size(),
            parallel_state.get_tensor_model_parallel_rank(),
        )
        placed = PlacedFrames(placed.values, *(column.chunk(ranks)[rank] for column in placed[1:]))
    model.tower.eval()  # as the torch trainer computes: without dropout
    found = encode_placed(model.tower, placed)
    if found is None:
        return embedded
    at, seen = found
    return embedded.index_put((at, torch.zeros_like(at)), seen.to(embedded.dtype))


def _new_tower(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a folder without its head and its text model; its weights are not set."""
    config = copy.deepcopy(loadable_config(folder, seeing=True))
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    with device:
        trunk = new_trunk(config, dtype, "sdpa")
    setattr(trunk, FAMILIES[config.model_type].text, None)
    return trunk


def _rename(layout: ParameterLayout, text: str) -> ParameterLayout:
    """A layout of the text model's tensors under the names that they have beside a tower."""
    names = {field: value for field, value in vars(layout).items() if isinstance(value, str)}
    return replace(layout, **{f: name.replace(_BASE, text, 1) for f, name in names.items() if name.startswith(_BASE)})  # type: ignore[type-var]

"""The torch trainer's batches, made from forests, and the part of a model that computes hidden states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from agentrl.common import cores
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import vision
from agentrl.train.forest import pictures
from agentrl.train.forest.forest import Forest, Rows
from agentrl.train.trainers.attention import AttentionPlan, BlockPlan
from agentrl.train.trainers.flex import FLEX_BLOCK, FlexPlan
from agentrl.train.trainers.state_schedule import StateSchedule

T = TypeVar("T")


def computing(method: Callable[..., T]) -> Callable[..., T]:
    """A method that computes with the trainer's own number of CPU threads."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> T:
        with cores.computing(self.threads):
            return method(self, *args, **kwargs)

    return run


@dataclass(slots=True)
class TorchBatch:
    """A forest ready to be computed: trained rows, token ids [1, T], positions, plans of attention and states.

    Positions are [1, T], or [3, 1, T] where images give them three axes. `images` are its frames, if any.
    """

    forest: Forest
    rows: Rows
    token_ids: Tensor
    position: Tensor
    plan: AttentionPlan
    states: StateSchedule
    images: vision.PlacedFrames | None = None

    def inputs(self, trunk: nn.Module) -> dict[str, Tensor | list[Tensor]]:
        """The tokens that `vision.language_of` a trunk computes: ids, or embeddings where some are of images.

        Raises:
            InvalidInput: the batch has images, and the model sees none.
        """
        if self.images is None:
            return {"input_ids": self.token_ids}
        if vision.family_of(trunk) is None:
            raise InvalidInput(f"the sessions hold images, and {type(trunk).__name__} sees none")
        return vision.embed(trunk, self.token_ids, self.images)


def prepare_batch(forest: Forest, device: torch.device, longest: int | None = None) -> TorchBatch:
    """The forest on the device, padded where kernels want fixed lengths, with its attention planned.

    Args:
        forest: what is computed.
        device: where.
        longest: how many tokens a path may have; None: any number.

    Raises:
        ConfigError: a path is longer than `longest`, the length up to which the model's rotary angles are constant.
    """
    if longest is not None and len(forest) and int(forest.position.max()) >= longest:
        raise ConfigError(
            f"a path has {int(forest.position.max()) + 1} tokens, and in rows of more than {longest} the "
            f"model's rotary angles change; set engine.max_context={longest}"
        )
    given, rows = forest, forest.to(device).rows()
    if device.type == "cuda":
        forest = forest.to(device).padded(padded_length(len(forest)))
    plan: AttentionPlan = FlexPlan(forest) if device.type == "cuda" else BlockPlan(forest)
    found = pictures.images_of(forest.fields)
    images = None if found is None else vision.PlacedFrames(*(tensor.to(device) for tensor in found))
    position = pictures.positions_of(forest.fields, forest.position)
    return TorchBatch(given, rows, forest.token_ids[None], position, plan, StateSchedule(forest), images)


def trunk_of(model: nn.Module) -> nn.Module:
    """A model without its head: what computes hidden states."""
    trunk = model.base_model
    if trunk is model and hasattr(model, "model"):  # Llama 4's text model
        trunk = model.model
    return cast(nn.Module, trunk)


def before_head(model: nn.Module) -> nn.Module:
    """Return the model's part between hidden states and output matrix: the `lm_head` of the ModernBERT decoder."""
    found = getattr(model, "lm_head", None)
    same = found is None or found is model.get_output_embeddings()  # type: ignore[operator]
    return nn.Identity() if same else cast(nn.Module, found)


def padded_length(tokens: int) -> int:
    """The next of a few fixed lengths (1, 1.25, 1.5 or 1.75 times a power of two), so that few shapes are compiled."""
    step = max(FLEX_BLOCK, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step

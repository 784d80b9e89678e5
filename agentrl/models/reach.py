"""How far back along its path a token attends, and what else of attention goes by its place on it.

transformers tells a layer's attention its window, or makes masks for a row of its own. Where tokens of many paths lie
in one row (a forest, an engine's step) both go by the place along the path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Depths = TypeVar("Depths", int, np.ndarray[Any, Any], Tensor)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far along its path a query sees.

    Attributes:
        tokens: that many, itself among them; or
        chunked: back to where its chunk of that many tokens begins (Llama 4).
    """

    tokens: int
    chunked: bool = False

    def first(self, depth: Depths) -> Depths:
        """The depth of the first key that a query at this depth sees; it never falls where the depth rises."""
        return depth - depth % self.tokens if self.chunked else depth - self.tokens + 1


def reach_of(module: nn.Module, window: int | None) -> Reach | None:
    """How far a layer's queries see, by what it passes on, or by its attribute (Qwen2-MoE), or its configuration."""
    window = window if window is not None else getattr(module, "sliding_window", None)
    if window is not None:
        return Reach(window)
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None) or []
    if layer is not None and layer < len(kinds) and kinds[layer] == "chunked_attention":
        return Reach(config.attention_chunk_size, chunked=True)  # type: ignore[union-attr]
    return None


def by_place(module: nn.Module, query: Tensor, place: Tensor) -> Tensor:
    """Queries as their places along their paths have them, where a layer scaled them by those in the row (Llama 4).

    Its layers without rotary embeddings scale a query at place t by 1 + a log(1 + floor((t + 1) / f)), after
    Scalable-Softmax (arXiv:2501.19399), and take t for the place in the row.

    Args:
        module: the layer's attention.
        query: [1, heads, T, d], scaled by the row's places.
        place: [T], along the paths.
    """
    if not getattr(module, "attn_temperature_tuning", False) or getattr(module, "use_rope", True):
        return query
    row = torch.arange(len(place), device=place.device)
    return query * (_temperature(module, place) / _temperature(module, row))[None, None, :, None]


def _temperature(module: Any, place: Tensor) -> Tensor:
    steps: Tensor = torch.floor((place.float() + 1) / module.floor_scale)
    return 1 + torch.log1p(steps) * float(module.attn_scale)

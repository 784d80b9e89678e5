"""Attention windows, and what else of attention depends on a token's position along its path.

transformers passes a layer's attention its window, or builds masks for a row. Where one row holds tokens of many paths
(a forest, an engine's step) both must follow the position along the path.
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
    """The distance that a query attends back along its path.

    Attributes:
        tokens: to that many tokens, including itself; or
        chunked: to the beginning of its chunk of that many tokens (Llama 4).
    """

    tokens: int
    chunked: bool = False

    def first(self, depth: Depths) -> Depths:
        """The depth of the first key that a query at this depth attends to; it is monotonic in the depth."""
        return depth - depth % self.tokens if self.chunked else depth - self.tokens + 1


def reach_of(module: nn.Module, window: int | None) -> Reach | None:
    """A layer's window: the argument that it passes on; else by its kind in the configuration; else its attribute.

    The attribute may be the whole model's: EXAONE 4 sets it in layers that attend in full, Qwen2-MoE in those with a
    window alone.
    """
    if window is not None:
        return Reach(window)
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None) or []
    kind = kinds[layer] if layer is not None and layer < len(kinds) else ""
    if kind == "full_attention":
        return None
    if kind == "chunked_attention":
        return Reach(config.attention_chunk_size, chunked=True)  # type: ignore[union-attr]
    window = getattr(module, "sliding_window", None)
    return None if window is None else Reach(window)


def rescale_queries(module: nn.Module, query: Tensor, position: Tensor) -> Tensor:
    """Queries scaled by their positions along their paths, where a layer scaled them by those in the row (Llama 4).

    Its layers without rotary embeddings scale a query at position t by 1 + a log(1 + floor((t + 1) / f)), after
    Scalable-Softmax (arXiv:2501.19399), and use the position in the row as t.

    Args:
        module: the layer's attention.
        query: [1, heads, T, d], scaled by the row's positions.
        position: [T], along the paths.
    """
    if not getattr(module, "attn_temperature_tuning", False) or getattr(module, "use_rope", True):
        return query
    row = torch.arange(len(position), device=position.device)
    return query * (_temperature(module, position) / _temperature(module, row))[None, None, :, None]


def _temperature(module: Any, position: Tensor) -> Tensor:
    steps: Tensor = torch.floor((position.float() + 1) / module.floor_scale)
    return 1 + torch.log1p(steps) * float(module.attn_scale)

"""Rotary positions by each token's own position, for every family's way of pairing channels.

Megatron rotates by the place in the row, which in a forest says nothing. Here the angles come from the
`position` that travels with the tokens (see `table`), so the same code serves any packing, a pipeline stage, and
a context-parallel rank. Frequencies are taken from transformers' own functions, scaling (linear, Llama 3, YaRN)
included; kinds whose frequencies depend on the length of the present row (dynamic, longrope) are refused,
because in a forest there is no such length.

Channels are paired either across halves (i with i + d/2: Llama, Qwen, GLM-4 MoE) or neighbour with neighbour
(2i with 2i + 1: GLM-4, DeepSeek). transformers moves DeepSeek's pairs apart while it rotates; queries and keys
alike, so no score changes, and here they stay where they are.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import InvalidInput

LENGTH_DEPENDENT = ("dynamic", "longrope")


class Rotary:
    """Rotates queries and keys; its angles are kept for the table that was used last."""

    def __init__(self, frequencies: Tensor, scaling: float = 1.0, *, neighbours: bool = False) -> None:
        self.frequencies = frequencies.float().cpu()
        self.scaling = scaling
        self.neighbours = neighbours
        self.width = 2 * frequencies.numel()
        self._latest: tuple[Any, tuple[Tensor, Tensor]] | None = None

    @classmethod
    def of(cls, hf: Any, head_dim: int, *, neighbours: bool = False, kind_of_layer: str | None = None) -> Rotary:
        """Make the rotation that a Hugging Face configuration asks for.

        Args:
            hf: the configuration.
            head_dim: channels of a head.
            neighbours: see above.
            kind_of_layer: which of the configuration's, where it has one for each kind of layer.

        Raises:
            InvalidInput: a kind of scaling that depends on the row's length.
        """
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        parameters = hf.rope_parameters if kind_of_layer is None else hf.rope_parameters[kind_of_layer]
        kind = parameters.get("rope_type", "default")
        if kind in LENGTH_DEPENDENT or (kind != "default" and kind not in ROPE_INIT_FUNCTIONS):
            raise InvalidInput(f"rope_type={kind!r} is not supported (known: default, linear, llama3, yarn)")
        if kind == "default":
            width = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
            powers = torch.arange(0, width, 2, dtype=torch.float) / width
            return cls(1.0 / parameters["rope_theta"] ** powers, neighbours=neighbours)
        several = {} if kind_of_layer is None else {"layer_type": kind_of_layer}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](hf, torch.device("cpu"), **several)
        return cls(frequencies, scaling, neighbours=neighbours)

    def __call__(self, states: Tensor, table: Tensor | None) -> Tensor:
        """Rotate the first `width` channels."""
        cos, sin = self._angles(states, table)
        turned, rest = states[..., : self.width], states[..., self.width :]
        if self.neighbours:
            first, second = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
        else:
            first, second = turned.chunk(2, -1)
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return torch.cat((turned, rest), -1) if rest.shape[-1] else turned

    def _angles(self, states: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [T, 1, 1, width / 2] each, in the states' precision."""
        if table is not None and self._latest is not None:
            owner, angles = self._latest
            if owner() is table and angles[0].dtype == states.dtype:
                return angles
        if self.frequencies.device != states.device:
            self.frequencies = self.frequencies.to(states.device)
        angle = positions(table, states.shape[0], states.device)[:, None].float() * self.frequencies
        cos, sin = (angle.cos() * self.scaling).to(states.dtype), (angle.sin() * self.scaling).to(states.dtype)
        angles = cos[:, None, None], sin[:, None, None]
        if table is not None:
            self._latest = weakref.ref(table), angles
        return angles


def positions(table: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Each token's position, [T], from what travels as `attention_mask`; without one, its place in the row.

    A table is an integer tensor whose last dimension but one, or only one before it, counts facts about tokens;
    the first fact is the position. Whatever stands behind it (such as `end`) is the core attention's business.
    """
    if table is None:
        return torch.arange(length, device=device)
    return table.reshape(-1, table.shape[-1])[0, :length]

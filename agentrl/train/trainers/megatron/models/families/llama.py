"""Llama 3 and what has its shape: SmolLM2, the tiny model; SmolLM3, some of whose layers don't rotate."""

from __future__ import annotations

from typing import Any

from agentrl.train.trainers.megatron.models.family import Family, require, window_by_kind
from agentrl.train.trainers.megatron.models.rotary import Rotary
from agentrl.train.trainers.megatron.models.tables import ATTENTION, MLP, NORMS, OUTSIDE


def rotary(hf: Any) -> Rotary:
    """Positions over a whole head, or the part of it that the configuration names."""
    return Rotary.of(hf, head_dim(hf))


def head_dim(hf: Any) -> int:
    """Return the channels of a head."""
    return int(getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads)


def rotary_by_kind(hf: Any) -> list[Rotary | None]:
    """Positions of each layer, where the configuration has some for each kind of layer."""
    known = {kind: Rotary.of(hf, head_dim(hf), kind_of_layer=kind) for kind in set(hf.layer_types)}
    return [known[kind] for kind in hf.layer_types]


def _sometimes(hf: Any) -> list[Rotary | None]:
    one = rotary(hf)
    return [one if rotated else None for rotated in hf.no_rope_layers]


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    settings=lambda hf: {"kv_channels": head_dim(hf)},
    rotary=rotary,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, attention_bias=False, mlp_bias=False),
)

SMOLLM3 = Family(
    name="smollm3",
    model_types=("smollm3",),
    settings=lambda hf: {"kv_channels": head_dim(hf)},
    rotary=_sometimes,
    windows=window_by_kind,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, attention_bias=False, mlp_bias=False),
    tiny=lambda hf: {"no_rope_layers": [1, 1, 1, 0]},
)

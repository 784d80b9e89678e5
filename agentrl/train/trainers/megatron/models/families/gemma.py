"""Gemma 1, 2 and 3 (text): norms around one, scaled embeddings; caps, windows and further norms since the second."""

from __future__ import annotations

from typing import Any

from agentrl.errors import InvalidInput
from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary, rotary_by_kind
from agentrl.train.trainers.megatron.models.family import Family, require, window_by_kind
from agentrl.train.trainers.megatron.models.tables import ATTENTION, FOUR_NORMS, MLP, NORMS, OUTSIDE


def _settings(hf: Any) -> dict[str, Any]:
    return {"kv_channels": head_dim(hf), "layernorm_zero_centered_gamma": True}


def _scaled(hf: Any) -> dict[str, Any]:
    return {**_settings(hf), "softmax_scale": hf.query_pre_attn_scalar**-0.5}


def _refuse(hf: Any) -> None:
    require(hf, attention_bias=False, use_bidirectional_attention=(None, False))
    one, other = getattr(hf, "hidden_act", None), getattr(hf, "hidden_activation", None)
    if one and other and one != other:
        raise InvalidInput(f"{hf.model_type}: hidden_act={one!r} and hidden_activation={other!r} name two functions")


def _refuse_3(hf: Any) -> None:
    _refuse(hf)
    require(hf, attn_logit_softcapping=None)  # transformers reads it and does not use it


def _width(hf: Any) -> float:
    return float(hf.hidden_size**0.5)


GEMMA = Family(
    name="gemma",
    model_types=("gemma",),
    settings=_settings,
    rotary=rotary,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=_refuse,
    embedding=_width,
    tiny=lambda hf: {"head_dim": 16},
)

GEMMA2 = Family(
    name="gemma2",
    model_types=("gemma2",),
    settings=_scaled,
    rotary=rotary,
    windows=window_by_kind,
    softcap=lambda hf: hf.attn_logit_softcapping,
    layer={**FOUR_NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=_refuse,
    post_norms=True,
    embedding=_width,
    tiny=lambda hf: {"head_dim": 16},
)

GEMMA3 = Family(
    name="gemma3_text",
    model_types=("gemma3_text",),
    settings=lambda hf: {**_scaled(hf), "qk_layernorm": True},
    rotary=rotary_by_kind,
    windows=window_by_kind,
    layer={**FOUR_NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=_refuse_3,
    post_norms=True,
    embedding=_width,
    tiny=lambda hf: {"head_dim": 16},
)

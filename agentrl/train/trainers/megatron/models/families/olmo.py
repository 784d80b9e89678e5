"""OLMo 2 and 3 (outputs normed and nothing else, queries and keys over all heads together) and OLMoE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary, rotary_by_kind
from agentrl.train.trainers.megatron.models.family import Family, require, window_by_kind, window_everywhere
from agentrl.train.trainers.megatron.models.layouts import Whole
from agentrl.train.trainers.megatron.models.tables import ATTENTION, EXPERTS, LAYER, MLP, NORMS, OUTSIDE, WIDE_NORMS

_NORMS = {
    "post_attention_norm.weight": Whole(LAYER + "post_attention_layernorm.weight"),
    "post_mlp_norm.weight": Whole(LAYER + "post_feedforward_layernorm.weight"),
}


def _experts(hf: Any) -> dict[str, Any]:
    return {
        "kv_channels": head_dim(hf),
        "num_moe_experts": hf.num_experts,
        "moe_ffn_hidden_size": hf.intermediate_size,
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": not hf.norm_topk_prob,
    }


OLMO2 = Family(
    name="olmo2",
    model_types=("olmo2",),
    settings=lambda hf: {"kv_channels": head_dim(hf)},
    rotary=rotary,
    layer={**_NORMS, **ATTENTION, **WIDE_NORMS, **MLP},
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, attention_bias=False),
    pre_norms=False,
    post_norms=True,
    wide_norms=True,
)

OLMO3 = replace(OLMO2, name="olmo3", model_types=("olmo3",), rotary=rotary_by_kind, windows=window_by_kind)

OLMOE = Family(
    name="olmoe",
    model_types=("olmoe",),
    settings=_experts,
    rotary=rotary,
    windows=window_everywhere,
    layer={**NORMS, **ATTENTION, **WIDE_NORMS, **EXPERTS},
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, attention_bias=False, clip_qkv=None),
    wide_norms=True,
    tiny=lambda hf: {"num_experts": 8, "num_experts_per_tok": 2},
)

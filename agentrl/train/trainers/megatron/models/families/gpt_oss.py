"""GPT-OSS: sinks, windows in every other layer, biases everywhere, experts in one tensor behind a clamped gate."""

from __future__ import annotations

from typing import Any

from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary
from agentrl.train.trainers.megatron.models.family import Family, require, window_by_kind
from agentrl.train.trainers.megatron.models.layouts import OutputCut, Stacked, Whole
from agentrl.train.trainers.megatron.models.tables import ATTENTION, LAYER, NORMS, OUTSIDE

_EXPERTS = LAYER + "mlp.experts."


def _settings(hf: Any) -> dict[str, Any]:
    """The gate is x * sigmoid(alpha * x) of what is clamped, and one is added to what it opens."""
    alpha = hf.swiglu_alpha
    return {
        "kv_channels": head_dim(hf),
        "add_bias_linear": True,
        "softmax_type": "learnable",
        "num_moe_experts": hf.num_local_experts,
        "moe_ffn_hidden_size": hf.intermediate_size,
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,
        "activation_func": lambda gate: gate * (alpha * gate).sigmoid(),
        "activation_func_clamp_value": hf.swiglu_limit,
        "glu_linear_offset": 1.0,
    }


GPT_OSS = Family(
    name="gpt_oss",
    model_types=("gpt_oss",),
    settings=_settings,
    rotary=rotary,
    windows=window_by_kind,
    layer={
        **NORMS,
        **ATTENTION,
        "self_attention.linear_proj.bias": Whole(LAYER + "self_attn.o_proj.bias"),
        "self_attention.core_attention.softmax_offset": OutputCut(LAYER + "self_attn.sinks"),
        "mlp.router.weight": Whole(LAYER + "mlp.router.weight"),
        "mlp.router.bias": Whole(LAYER + "mlp.router.bias"),
        "mlp.experts.linear_fc1.weight": Stacked(_EXPERTS + "gate_up_proj", by_turns=True),
        "mlp.experts.linear_fc1.bias": Stacked(_EXPERTS + "gate_up_proj_bias", by_turns=True),
        "mlp.experts.linear_fc2.weight": Stacked(_EXPERTS + "down_proj"),
        "mlp.experts.linear_fc2.bias": Stacked(_EXPERTS + "down_proj_bias"),
    },
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, attention_bias=True),
    tiny=lambda hf: {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2},
)

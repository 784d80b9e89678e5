"""Qwen 2 and 2.5 (biases on query, key and value), Qwen 3 (normed queries and keys), and their mixtures of experts."""

from __future__ import annotations

from typing import Any

from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary
from agentrl.train.trainers.megatron.models.family import Family, require, window_by_kind, window_everywhere
from agentrl.train.trainers.megatron.models.tables import ATTENTION, EXPERTS, MLP, NORMS, OUTSIDE, SHARED_EXPERT


def _biasless(hf: Any) -> None:
    require(hf, attention_bias=False)


def _normed(hf: Any) -> dict[str, Any]:
    return {"kv_channels": head_dim(hf), "qk_layernorm": True}


def _experts(hf: Any) -> dict[str, Any]:
    """A softmax over all experts, of which the best are kept and, with norm_topk_prob, made to sum to one.

    The softmax of the best logits alone is the same as that, which is Megatron's other way.
    """
    sparse = [
        int(layer not in (hf.mlp_only_layers or ()) and (layer + 1) % hf.decoder_sparse_step == 0)
        for layer in range(hf.num_hidden_layers)
    ]
    return {
        **_normed(hf),
        "num_moe_experts": hf.num_experts,
        "moe_layer_freq": sparse,
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": not hf.norm_topk_prob,
    }


def _shared(hf: Any) -> dict[str, Any]:
    """The same with one more expert for all tokens, which a gate of its own weighs."""
    return {
        **_experts(hf),
        "qk_layernorm": False,
        "add_qkv_bias": bool(hf.qkv_bias),
        "moe_shared_expert_intermediate_size": hf.shared_expert_intermediate_size,
        "moe_shared_expert_gate": True,
    }


def _tiny(hf: Any) -> dict[str, Any]:
    return {
        "num_local_experts": 8,  # what transformers calls num_experts inside
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [0] if hf.mlp_only_layers else [],
        "decoder_sparse_step": min(hf.decoder_sparse_step, 2),
    }


QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    settings=lambda hf: {"kv_channels": head_dim(hf), "add_qkv_bias": True},
    rotary=rotary,
    windows=window_by_kind,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
)

QWEN2_MOE = Family(
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    settings=_shared,
    rotary=rotary,
    windows=window_by_kind,
    layer={**NORMS, **ATTENTION, **MLP, **EXPERTS, **SHARED_EXPERT},
    outside=OUTSIDE,
    tiny=lambda hf: {**_tiny(hf), "num_experts": 8, "shared_expert_intermediate_size": 48},
)

QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    settings=_normed,
    rotary=rotary,
    windows=window_by_kind,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=_biasless,
    tiny=lambda hf: {"head_dim": 16},
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    settings=_experts,
    rotary=rotary,
    windows=window_everywhere,
    layer={**NORMS, **ATTENTION, **MLP, **EXPERTS},
    outside=OUTSIDE,
    refuse=_biasless,
    tiny=lambda hf: {**_tiny(hf), "head_dim": 16},
)

"""DeepSeek V3 and R1, and what has their shape: Kimi K2, Moonlight.

Latent attention, with or without a compressed query; experts chosen by a sigmoid's score plus a bias that is
not part of the weight, within the best groups of experts; shared experts; the first layers dense.
"""

from __future__ import annotations

from typing import Any

from agentrl.errors import InvalidInput
from agentrl.train.trainers.megatron.models.family import Family, require
from agentrl.train.trainers.megatron.models.rotary import Rotary
from agentrl.train.trainers.megatron.models.tables import EXPERTS, LATENT, MLP, NORMS, OUTSIDE, SHARED_EXPERTS


def routing(hf: Any) -> dict[str, Any]:
    """Sigmoid routing with a correction bias (DeepSeek-V3, arXiv 2412.19437), as GLM-4.5 has it too.

    One group, or all groups, is no limit at all.
    """
    limited = (hf.n_group or 1) > 1 and hf.topk_group != hf.n_group
    return {
        "num_moe_experts": hf.n_routed_experts,
        "moe_layer_freq": [int(layer >= hf.first_k_dense_replace) for layer in range(hf.num_hidden_layers)],
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": hf.moe_intermediate_size * hf.n_shared_experts or None,
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_topk_scaling_factor": hf.routed_scaling_factor,
        "moe_router_num_groups": hf.n_group if limited else None,
        "moe_router_group_topk": hf.topk_group if limited else None,
    }


def refuse_routing(hf: Any) -> None:
    """Refuse what Megatron's router can't do: weights that don't sum to one, groups judged by other than two."""
    require(hf, norm_topk_prob=True)
    if routing(hf)["moe_router_num_groups"] and hf.num_experts_per_tok // hf.topk_group != 2:
        raise InvalidInput(
            f"{hf.model_type}: Megatron judges a group of experts by its best num_experts_per_tok // topk_group = "
            f"{hf.num_experts_per_tok // hf.topk_group}, the model by its best 2"
        )


def tiny_routing(hf: Any) -> dict[str, Any]:
    """Few and small experts, limited to some groups where the model's are."""
    limited = routing(hf)["moe_router_num_groups"] is not None
    return {
        "n_routed_experts": 8,
        "n_shared_experts": min(hf.n_shared_experts, 2),
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 4 if limited else 2,
        "n_group": 4 if limited else 1,
        "topk_group": 2 if limited else 1,
        "first_k_dense_replace": min(hf.first_k_dense_replace, 1),
    }


def _refuse(hf: Any) -> None:
    refuse_routing(hf)
    require(hf, attention_bias=False)


def _settings(hf: Any) -> dict[str, Any]:
    rope = hf.rope_parameters
    scaled = rope.get("rope_type", "default") != "default"
    return {
        **routing(hf),
        "multi_latent_attention": True,
        "num_query_groups": hf.num_attention_heads,
        "kv_channels": hf.qk_nope_head_dim + hf.qk_rope_head_dim,
        "q_lora_rank": hf.q_lora_rank,
        "kv_lora_rank": hf.kv_lora_rank,
        "qk_head_dim": hf.qk_nope_head_dim,
        "qk_pos_emb_head_dim": hf.qk_rope_head_dim,
        "v_head_dim": hf.v_head_dim,
        "rope_type": "rope",  # ours rotates; Megatron's is built and dropped
        "rotary_scaling_factor": rope["factor"] if scaled else 1.0,  # with the next, the softmax's scale
        "mscale_all_dim": rope.get("mscale_all_dim", 0.0) or 0.0 if scaled else 0.0,
    }


def _rotary(hf: Any) -> Rotary:
    return Rotary.of(hf, hf.qk_rope_head_dim, neighbours=bool(hf.rope_interleave))


def _tiny(hf: Any) -> dict[str, Any]:
    return {
        **tiny_routing(hf),
        "num_key_value_heads": 4,
        "q_lora_rank": 24 if hf.q_lora_rank else None,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "head_dim": 8,
        "v_head_dim": 16,
    }


DEEPSEEK = Family(
    name="deepseek_v3",
    model_types=("deepseek_v3", "kimi_k2"),
    settings=_settings,
    rotary=_rotary,
    layer={**NORMS, **LATENT, **MLP, **EXPERTS, **SHARED_EXPERTS},
    outside=OUTSIDE,
    refuse=_refuse,
    tiny=_tiny,
)

"""GLM-4 (dense, outputs normed, neighbours rotated) and GLM-4.5 / 4.6 (mixture of experts)."""

from __future__ import annotations

from typing import Any

from agentrl.train.trainers.megatron.models import tables
from agentrl.train.trainers.megatron.models.families.deepseek import refuse_routing, routing, tiny_routing
from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.rotary import Rotary


def _neighbours(hf: Any) -> Rotary:
    return Rotary.of(hf, head_dim(hf), neighbours=True)


def _experts(hf: Any) -> dict[str, Any]:
    return {
        **routing(hf),
        "kv_channels": head_dim(hf),
        "add_qkv_bias": bool(hf.attention_bias),
        "qk_layernorm": bool(hf.use_qk_norm),
    }


GLM4 = Family(
    name="glm4",
    model_types=("glm4",),
    settings=lambda hf: {"kv_channels": head_dim(hf), "add_qkv_bias": bool(hf.attention_bias)},
    rotary=_neighbours,
    layer={**tables.NORMS, **tables.POST_NORMS, **tables.ATTENTION, **tables.JOINT_MLP},
    outside=tables.OUTSIDE,
    post_norms=True,
    tiny=lambda hf: {"head_dim": 16},
)

GLM4_MOE = Family(
    name="glm4_moe",
    model_types=("glm4_moe",),
    settings=_experts,
    rotary=rotary,
    layer={**tables.NORMS, **tables.ATTENTION, **tables.MLP, **tables.EXPERTS, **tables.SHARED_EXPERTS},
    outside=tables.OUTSIDE,
    refuse=refuse_routing,
    tiny=lambda hf: {"head_dim": 16, **tiny_routing(hf)},
)

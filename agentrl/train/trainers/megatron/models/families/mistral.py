"""Mistral (a sliding window in every layer, in its first releases) and Mixtral, its mixture of experts."""

from __future__ import annotations

from typing import Any

from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary
from agentrl.train.trainers.megatron.models.family import Family, require, window_everywhere
from agentrl.train.trainers.megatron.models.layouts import Gated, InputCut, Whole
from agentrl.train.trainers.megatron.models.tables import ATTENTION, LAYER, MLP, NORMS, OUTSIDE

_BLOCK = LAYER + "block_sparse_moe."
_EXPERT = _BLOCK + "experts.{expert}."


def _experts(hf: Any) -> dict[str, Any]:
    """A softmax over the best experts' logits, which is that over all made to sum to one among the best."""
    return {
        "kv_channels": head_dim(hf),
        "num_moe_experts": hf.num_local_experts,
        "moe_ffn_hidden_size": hf.intermediate_size,
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,
    }


MISTRAL = Family(
    name="mistral",
    model_types=("mistral",),
    settings=lambda hf: {"kv_channels": head_dim(hf)},
    rotary=rotary,
    windows=window_everywhere,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    tiny=lambda hf: {"head_dim": 16},
)

MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    settings=_experts,
    rotary=rotary,
    windows=window_everywhere,
    layer={
        **NORMS,
        **ATTENTION,
        "mlp.router.weight": Whole(_BLOCK + "gate.weight"),
        "mlp.experts.linear_fc1.weight": Gated(_EXPERT + "w1.weight", _EXPERT + "w3.weight"),
        "mlp.experts.linear_fc2.weight": InputCut(_EXPERT + "w2.weight"),
    },
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, router_jitter_noise=0.0),
    tiny=lambda hf: {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": None},
)

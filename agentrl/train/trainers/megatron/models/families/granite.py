"""Granite 3: Llama with factors on embeddings, scores, what is added, and logits."""

from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary
from agentrl.train.trainers.megatron.models.family import Family, require
from agentrl.train.trainers.megatron.models.tables import ATTENTION, MLP, NORMS, OUTSIDE

GRANITE = Family(
    name="granite",
    model_types=("granite",),
    settings=lambda hf: {"kv_channels": head_dim(hf), "softmax_scale": float(hf.attention_multiplier)},
    rotary=rotary,
    layer={**NORMS, **ATTENTION, **MLP},
    outside=OUTSIDE,
    refuse=lambda hf: require(hf, attention_bias=False, mlp_bias=False),
    embedding=lambda hf: float(hf.embedding_multiplier),
    residual=lambda hf: float(hf.residual_multiplier),
    tiny=lambda hf: {"logits_scaling": min(hf.logits_scaling, 2.0)},
)

"""Phi-3, 3.5 and 4: one tensor for query, key and value, one for gate and up, and perhaps a window in every layer."""

from agentrl.train.trainers.megatron.models.families.llama import head_dim, rotary
from agentrl.train.trainers.megatron.models.family import Family, window_everywhere
from agentrl.train.trainers.megatron.models.tables import JOINT_ATTENTION, JOINT_MLP, NORMS, OUTSIDE

PHI3 = Family(
    name="phi3",
    model_types=("phi3",),
    settings=lambda hf: {"kv_channels": head_dim(hf)},
    rotary=rotary,
    windows=window_everywhere,
    layer={**NORMS, **JOINT_ATTENTION, **JOINT_MLP},
    outside=OUTSIDE,
)

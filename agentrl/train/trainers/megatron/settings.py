"""The settings of `trainer=megatron`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from agentrl.config import Section
from agentrl.train.trainers.parameter_settings import ParameterConfig

TOWERS = ("idefics3", "smolvlm")
"""The `model_type`s of models that see whose tower has a place; their text model is of one of the families."""


class MoeConfig(Section):
    """The settings of a mixture of experts' balance during training."""

    renamed: ClassVar[Mapping[str, str]] = {"replay": "routing_replay"}
    only_with: ClassVar[Mapping[str, str]] = {"drop": "capacity"}
    aux_loss: NonNegativeFloat = 0.0
    """Weight of the load-balancing loss over a micro-batch (Switch Transformers, arXiv 2101.03961)."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the router's z-loss (ST-MoE, arXiv 2202.08906)."""
    bias_rate: NonNegativeFloat = 0.0
    """Step of the selection bias, which balances without a loss (arXiv 2408.15664); for routers that have one."""
    capacity: PositiveFloat | None = None
    """Tokens that an expert takes, as a multiple of an even share; None drops nothing."""
    drop: Literal["probs", "position"] = "probs"
    """The tokens that an expert at capacity drops: the least probable, or the last."""
    dispatcher: Literal["alltoall", "allgather"] = "alltoall"
    """The dispatch of tokens to experts on other ranks: sent, or gathered everywhere (micro-batches get one length)."""
    routing_replay: Literal["off", "forward", "rollout"] = "off"
    """The routed experts that training uses: its own at each pass, those of a step's first pass, or the engine's."""


class MegatronConfig(ParameterConfig):
    """The settings of `trainer=megatron`."""

    name: str = "megatron"
    """The trainer's name."""
    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    """AdamW, plain gradient descent, or Muon for the matrices of hidden layers and AdamW for the rest, as with
    trainer=torch; with muon and sgd data-parallel ranks share no state."""
    ranks: PositiveInt | None = None
    """Processes, all together; None is every GPU there is, or as few as the layout needs."""
    tensor_parallel: PositiveInt = 1
    """Ranks that share each matrix."""
    sequence_parallel: bool | None = None
    """Tensor-parallel ranks also share the sequence between matrices; None: where the model has experts."""
    pipeline_parallel: PositiveInt = 1
    """Ranks that share the layers."""
    virtual_pipeline: PositiveInt = 1
    """Chunks of layers on each pipeline rank (interleaved schedule)."""
    context_parallel: PositiveInt = 1
    """Ranks that share each forest's tokens."""
    expert_parallel: PositiveInt = 1
    """Ranks that share the experts, out of all but the pipeline's."""
    recompute: Literal["none", "full"] = "none"
    """Activations: keep them, or keep each layer's input and compute the rest again in the backward pass."""
    distributed_optimizer: bool = True
    """Data-parallel ranks share the optimizer's state."""
    async_save: bool = False
    """Checkpoints are written while training goes on."""
    proof: bool = True
    """Before training, test on a small model of the architecture that packed forests train like separate sequences."""
    family: str | None = None
    """The model's family, by name or import path; None goes by its configuration."""
    reference: Literal["switch", "copy"] = "switch"
    """The reference's weights: switched in from the CPU's memory, or kept on the device as well."""
    timeout: PositiveFloat = 1800.0
    """Seconds that one call to the ranks may take before they are ended."""
    moe: MoeConfig = MoeConfig()
    """Mixture of experts."""

    @property
    def shares_state(self) -> bool:
        """True where data-parallel ranks share the optimizer's state: gradient descent has none, Muon's is whole."""
        return self.distributed_optimizer and self.optimizer == "adam"

    @model_validator(mode="after")
    def _averages_in_float32(self) -> MegatronConfig:
        if self.average_decay is not None and self.dtype == "bfloat16":
            raise ValueError(
                f"average_decay={self.average_decay:g}: weights are held in dtype=bfloat16, whose rounding would "
                "swallow the average's small changes; use dtype=float32, or trainer=torch"
            )
        return self

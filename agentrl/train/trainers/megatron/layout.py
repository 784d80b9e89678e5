"""The parallel layout, checked for consistency and against the model before anything is started.

    ranks = tensor x pipeline x context x data

`data` follows from the others. Experts are sharded over the ranks of tensor, context and data together, as in
Megatron, so `expert` is no factor. Each violated rule is reported with its numbers; Megatron would raise an assertion
on each rank, minutes later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ConfigError
from agentrl.train.plan.memory import Split
from agentrl.train.trainers.megatron.settings import MegatronConfig

SIZES = ("tensor", "pipeline", "interleave", "context", "data", "expert")


@dataclass(frozen=True, slots=True)
class ParallelLayout(Split):
    """A checked layout.

    Attributes:
        tensor: ranks that share each matrix.
        pipeline: ranks that share the layers.
        interleave: chunks of layers on each of them.
        context: ranks that share each forest's tokens.
        data: replicas of all that.
        expert: ranks that share the experts.
        sequence: whether tensor ranks share the sequence between matrices.
    """

    interleave: int = 1
    sequence: bool = False

    def __str__(self) -> str:
        sizes = (f"{name}={getattr(self, name)}" for name in SIZES if getattr(self, name) > 1)
        return ", ".join(sizes) or "one rank"


def layout_of(config: MegatronConfig, hf: Any, gpus: int = 0) -> ParallelLayout:
    """The layout of a configuration.

    Args:
        config: the trainer's settings.
        hf: the model's Hugging Face configuration.
        gpus: how many there are; 0 leaves the number of ranks to the layout.
    """
    hf = hf.get_text_config() if hasattr(hf, "get_text_config") else hf
    shared = config.tensor_parallel * config.pipeline_parallel * config.context_parallel
    least = math.lcm(shared, config.pipeline_parallel * config.expert_parallel)
    ranks = config.ranks or max(gpus, least)
    _require(
        ranks % shared == 0,
        f"trainer.ranks={ranks} is not a multiple of tensor x pipeline x context = "
        f"{config.tensor_parallel} x {config.pipeline_parallel} x {config.context_parallel} = {shared}; "
        f"trainer.ranks={least * max(ranks // least, 1)} is",
    )
    _require(
        ranks % (config.pipeline_parallel * config.expert_parallel) == 0,
        f"trainer.ranks={ranks} is not a multiple of pipeline x expert = "
        f"{config.pipeline_parallel} x {config.expert_parallel}; trainer.ranks={least * max(ranks // least, 1)} is",
    )
    experts = experts_of(hf)
    sequence = (
        config.sequence_parallel
        if config.sequence_parallel is not None
        else bool(experts) and config.tensor_parallel > 1
    )
    _check_model(config, hf, experts)
    _check_together(config, experts, sequence)
    return ParallelLayout(
        tensor=config.tensor_parallel,
        pipeline=config.pipeline_parallel,
        interleave=config.virtual_pipeline,
        context=config.context_parallel,
        data=ranks // shared,
        expert=config.expert_parallel,
        sequence=sequence,
    )


def experts_of(hf: Any) -> int:
    """Return a model's number of routed experts; 0 where it is dense."""
    for name in ("n_routed_experts", "num_experts", "num_local_experts"):
        if count := getattr(hf, name, None):
            return int(count)
    return 0


def _check_model(config: MegatronConfig, hf: Any, experts: int) -> None:
    for name in ("num_attention_heads", "intermediate_size", "num_hidden_layers"):
        _require(
            isinstance(size := getattr(hf, name, None), int),
            f"trainer=megatron divides layers by {name}, and the model's config.json "
            f"(model_type={getattr(hf, 'model_type', None)!r}) has {size!r}; trainer=torch or fsdp does not need it",
        )
    heads, groups = hf.num_attention_heads, getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads
    _require(
        heads % config.tensor_parallel == 0,
        f"trainer.tensor_parallel={config.tensor_parallel} does not divide the model's {heads} attention heads",
    )
    _require(
        groups % config.tensor_parallel == 0 or config.tensor_parallel % groups == 0,
        f"trainer.tensor_parallel={config.tensor_parallel} and the model's {groups} key-value heads: "
        "neither divides the other",
    )
    widths = {
        "intermediate_size": hf.intermediate_size,
        "moe_intermediate_size": getattr(hf, "moe_intermediate_size", 0),
    }
    for name, width in widths.items():
        _require(
            not width or width % config.tensor_parallel == 0,
            f"trainer.tensor_parallel={config.tensor_parallel} does not divide the model's {name}={width}",
        )
    chunks = config.pipeline_parallel * config.virtual_pipeline
    _require(
        hf.num_hidden_layers % chunks == 0,
        f"trainer.pipeline_parallel={config.pipeline_parallel} x virtual_pipeline={config.virtual_pipeline} = "
        f"{chunks} chunks do not divide the model's {hf.num_hidden_layers} layers",
    )
    _require(
        config.expert_parallel == 1 or bool(experts),
        f"trainer.expert_parallel={config.expert_parallel} for a model without experts ({hf.model_type})",
    )
    _require(
        not experts or experts % config.expert_parallel == 0,
        f"trainer.expert_parallel={config.expert_parallel} does not divide the model's {experts} experts",
    )


def _check_together(config: MegatronConfig, experts: int, sequence: bool) -> None:
    _require(
        config.virtual_pipeline == 1 or config.pipeline_parallel > 1,
        f"trainer.virtual_pipeline={config.virtual_pipeline} divides the layers of a pipeline rank; "
        "trainer.pipeline_parallel is 1",
    )
    _require(
        not sequence or config.tensor_parallel > 1,
        "trainer.sequence_parallel=true shares the sequence among tensor ranks; trainer.tensor_parallel is 1",
    )
    _require(
        not experts or config.tensor_parallel == 1 or sequence,
        f"trainer.sequence_parallel=false with trainer.tensor_parallel={config.tensor_parallel}: "
        "a mixture of experts needs the sequence shared",
    )
    _require(
        config.dtype != "float16",
        "trainer.dtype=float16 would underflow without loss scaling; use bfloat16 or float32",
    )
    moe = config.moe
    _require(
        bool(experts) or moe == type(moe)(),
        "trainer.moe is set, and the model has no experts",
    )
    _require(
        moe.capacity is None or moe.dispatcher == "alltoall",
        f"trainer.moe.capacity={moe.capacity} needs trainer.moe.dispatcher=alltoall, not {moe.dispatcher}",
    )
    _require(
        moe.routing_replay == "off" or moe.capacity is None,
        f"trainer.moe.routing_replay={moe.routing_replay} with trainer.moe.capacity={moe.capacity}: "
        "what is dropped depends on the neighbours in a pack, and can't be replayed",
    )


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ConfigError(problem)

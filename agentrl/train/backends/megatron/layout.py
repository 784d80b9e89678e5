"""How many ranks share what: checked against each other and against the model, before anything is started.

    ranks = tensor x pipeline x context x data

`data` is what is left over. Experts are shared among the ranks of tensor, context and data together, as
Megatron does, so `expert` multiplies nothing. Every rule that does not hold is named, with the numbers that
break it: Megatron would say the same in an assertion of each rank, minutes later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentrl.config import TrainerConfig
from agentrl.errors import ConfigError

SIZES = ("tensor", "pipeline", "interleave", "context", "data", "expert")


@dataclass(frozen=True, slots=True)
class Layout:
    """A checked layout.

    Attributes:
        tensor: ranks that share each matrix.
        pipeline: ranks that share the layers.
        interleave: chunks of layers on each of them.
        context: ranks that share each forest's tokens.
        data: copies of all that.
        expert: ranks that share the experts.
        sequence: whether tensor ranks share the sequence between matrices.
    """

    tensor: int = 1
    pipeline: int = 1
    interleave: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    sequence: bool = False

    @property
    def ranks(self) -> int:
        """Processes, all together."""
        return self.tensor * self.pipeline * self.context * self.data

    def __str__(self) -> str:
        sizes = (f"{name}={getattr(self, name)}" for name in SIZES if getattr(self, name) > 1)
        return ", ".join(sizes) or "one rank"


def layout_of(config: TrainerConfig, hf: Any, gpus: int = 0) -> Layout:
    """The layout that a configuration asks for.

    Args:
        config: the trainer's settings.
        hf: the model's Hugging Face configuration.
        gpus: how many there are; 0 leaves the number of ranks to the layout.

    Raises:
        ConfigError: naming the rule that does not hold.
    """
    shared = config.tensor * config.pipeline * config.context
    least = math.lcm(shared, config.pipeline * config.expert)
    ranks = config.ranks or max(gpus, least)
    _require(
        ranks % shared == 0,
        f"trainer.ranks={ranks} is not a multiple of tensor x pipeline x context = "
        f"{config.tensor} x {config.pipeline} x {config.context} = {shared}",
    )
    _require(
        ranks % (config.pipeline * config.expert) == 0,
        f"trainer.ranks={ranks} is not a multiple of pipeline x expert = {config.pipeline} x {config.expert}",
    )
    experts = experts_of(hf)
    sequence = config.sequence if config.sequence is not None else bool(experts) and config.tensor > 1
    _check_model(config, hf, experts)
    _check_together(config, experts, sequence)
    return Layout(
        tensor=config.tensor,
        pipeline=config.pipeline,
        interleave=config.interleave,
        context=config.context,
        data=ranks // shared,
        expert=config.expert,
        sequence=sequence,
    )


def experts_of(hf: Any) -> int:
    """How many routed experts a model has; 0 where it is dense."""
    for name in ("n_routed_experts", "num_experts", "num_local_experts"):
        if count := getattr(hf, name, None):
            return int(count)
    return 0


def _check_model(config: TrainerConfig, hf: Any, experts: int) -> None:
    heads, groups = hf.num_attention_heads, getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads
    _require(
        heads % config.tensor == 0,
        f"trainer.tensor={config.tensor} does not divide the model's {heads} attention heads",
    )
    _require(
        groups % config.tensor == 0 or config.tensor % groups == 0,
        f"trainer.tensor={config.tensor} and the model's {groups} key-value heads: neither divides the other",
    )
    widths = {
        "intermediate_size": hf.intermediate_size,
        "moe_intermediate_size": getattr(hf, "moe_intermediate_size", 0),
    }
    for name, width in widths.items():
        _require(
            not width or width % config.tensor == 0,
            f"trainer.tensor={config.tensor} does not divide the model's {name}={width}",
        )
    chunks = config.pipeline * config.interleave
    _require(
        hf.num_hidden_layers % chunks == 0,
        f"trainer.pipeline={config.pipeline} x interleave={config.interleave} = {chunks} chunks "
        f"do not divide the model's {hf.num_hidden_layers} layers",
    )
    _require(
        config.expert == 1 or bool(experts),
        f"trainer.expert={config.expert} for a model without experts ({hf.model_type})",
    )
    _require(
        not experts or experts % config.expert == 0,
        f"trainer.expert={config.expert} does not divide the model's {experts} experts",
    )


def _check_together(config: TrainerConfig, experts: int, sequence: bool) -> None:
    _require(
        config.interleave == 1 or config.pipeline > 1,
        f"trainer.interleave={config.interleave} interleaves a pipeline; trainer.pipeline is 1",
    )
    _require(
        not sequence or config.tensor > 1,
        "trainer.sequence=true shares the sequence among tensor ranks; trainer.tensor is 1",
    )
    _require(
        not experts or config.tensor == 1 or sequence,
        f"trainer.sequence=false with trainer.tensor={config.tensor}: a mixture of experts needs the sequence shared",
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
        moe.replay == "off" or moe.capacity is None,
        f"trainer.moe.replay={moe.replay} with trainer.moe.capacity={moe.capacity}: "
        "what is dropped depends on the neighbours in a pack, and can't be replayed",
    )


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ConfigError(problem)

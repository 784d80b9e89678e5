"""Memory of one device, in bytes: what the trainer and the engines keep there.

Weights, gradients and optimizer state are counted; tests hold them against the tensors of the torch trainer and of
Megatron's ranks. Activations are an estimate (`Shape.layer_activations`): fused attention, one forest of `token_budget`
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from agentrl.train.plan.shapes import Shape

GIB = 1 << 30
LOGITS = 3 * 4 * (1 << 24)
"""Logits of one chunk of the head in float32, with its softmax and their gradient (`agentrl.train.trainers.head`)."""
OVERHEAD = 2 * GIB
"""Bytes that CUDA, NCCL and the allocator's fragments take on each device; an assumption."""
ENGINE_FRACTION = 0.85
"""The part of a GPU's memory that an engine takes for weights and key-value cache."""


@dataclass(frozen=True)
class Split:
    """The number of ranks that share each part: Megatron's `ParallelLayout` without its checks."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return self.tensor * self.pipeline * self.context * self.data


@dataclass(frozen=True)
class Numbers:
    """The formats of a trainer's numbers.

    Attributes:
        trainer: in which of the built-in trainers' ways. torch keeps weights in float32; fsdp too, divided among
            data-parallel ranks with all else that it keeps; megatron in `dtype`, with a float32 copy in the optimizer.
        dtype: what it computes in.
        recompute: whether activations are computed again in the backward pass.
        reference: whether a reference's weights are on the device as well.
        average: whether a moving average of the weights is there too.
        critic: whether a critic with a trunk of its own learns there beside the policy.
        reward_model: whether a reward model does.
        distributed: whether data-parallel ranks share the optimizer's state.
        offloaded: whether AdamW's moments are in the CPU's memory but during updates.
        adapter: the numbers of an adapter that is trained in the whole model's place; 0: the whole model is.
        packed: the base's numbers that are held in four bits.
    """

    trainer: Literal["torch", "fsdp", "megatron"] = "megatron"
    dtype: str = "bfloat16"
    recompute: bool = False
    reference: bool = False
    average: bool = False
    critic: bool = False
    reward_model: bool = False
    distributed: bool = True
    offloaded: bool = False
    adapter: int = 0
    packed: int = 0

    @property
    def weight(self) -> int:
        """Bytes of a weight."""
        return 2 if self.trainer == "megatron" and self.dtype == "bfloat16" else 4

    @property
    def state(self) -> int:
        """Bytes of a weight's optimizer state: AdamW's two moments, and the float32 copy of bfloat16 weights."""
        return 8 + (4 if self.weight == 2 else 0)

    @property
    def activation(self) -> int:
        """Bytes of an activation."""
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes on one of the trainer's devices, the fullest one.

    `gathered` are whole weights while FSDP computes; `updating` is the offloaded state, which comes back for updates,
    when activations are gone.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    reference: float = 0.0
    average: float = 0.0
    critic: float = 0.0
    reward_model: float = 0.0
    gathered: float = 0.0
    logits: float = LOGITS
    updating: float = 0.0

    @property
    def total(self) -> float:
        """All together, while it computes or while it updates."""
        return self.resident + max(self.activations + self.gathered + self.logits, self.updating)

    @property
    def resident(self) -> float:
        """Bytes that stay while colocated engines generate."""
        passing = ("activations", "gathered", "logits", "updating")
        return float(sum(getattr(self, each.name) for each in fields(self) if each.name not in passing))


def own_parameters(shape: Shape, split: Split) -> tuple[float, float]:
    """Parameters on the fullest device: those that all data-parallel ranks have, and experts'.

    A pipeline's first and last stages have one of embedding and head each; a tower of images is on the first stage.
    """
    layers = shape.num_hidden_layers / split.pipeline
    table = shape.vocab_size * shape.hidden_size
    embeddings = shape.embeddings if split.pipeline == 1 else table + shape.hidden_size
    return (layers * shape.dense + embeddings + shape.tower) / split.tensor, layers * shape.experts / split.expert


def trainer_memory(shape: Shape, split: Split, numbers: Numbers, token_budget: int) -> TrainerMemory:
    """Return the trainer's memory on its fullest device."""
    shared, experts = own_parameters(shape, split)
    own = shared + experts
    state = numbers.state * own
    gathered = 0.0
    if numbers.trainer == "fsdp":  # a layer and the next one, what is outside of layers, and the gradients of either
        layer, rest = own / shape.num_hidden_layers, float(shape.embeddings)
        gathered = numbers.activation * (2 * layer + rest + max(layer, rest))
        own, state = own / split.data, state / split.data
    if numbers.distributed:
        copies = split.data * split.context
        of_experts = max(split.ranks // (split.pipeline * split.expert), 1)
        state = numbers.state * (shared / copies + experts / of_experts)
    moments = state * 8 / numbers.state if numbers.offloaded else 0.0
    beside = (numbers.weight + 4) * own + state  # a model that learns beside the policy
    tokens, layers = token_budget / split.context, shape.num_hidden_layers  # 1F1B: as many micro-batches as stages
    kept = (
        shape.hidden_size * layers + shape.layer_activations if numbers.recompute else shape.layer_activations * layers
    )
    return TrainerMemory(
        weights=numbers.weight * own,
        gradients=4 * own,
        optimizer=state - moments,
        activations=tokens * kept / split.tensor * numbers.activation,
        reference=numbers.weight * own if numbers.reference else 0.0,
        average=4 * own if numbers.average else 0.0,
        critic=beside if numbers.critic else 0.0,
        reward_model=beside if numbers.reward_model else 0.0,
        gathered=gathered,
        logits=min(LOGITS, 12 * tokens * shape.vocab_size / split.tensor),
        updating=moments,
    )


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on one of an engine's devices.

    Attributes:
        weights: its share of the weights.
        token: key-value cache of one token.
        cache: what is left for the cache.
    """

    weights: float
    token: float
    cache: float

    @property
    def tokens(self) -> int:
        """Tokens that the engine's cache holds."""
        return max(int(self.cache // self.token), 0)


def engine_memory(shape: Shape, ranks: int, width: int, device: float, taken: float = 0.0) -> EngineMemory:
    """Return an engine's memory on each of its devices.

    Args:
        shape: the model.
        ranks: GPUs that share it by tensor parallelism.
        width: bytes of a weight and of a cached number.
        device: bytes of a device's memory.
        taken: those of them that a trainer on the same devices keeps.
    """
    weights = shape.parameters * width / ranks
    token = shape.kv_values * width / min(ranks, shape.num_key_value_heads)  # beyond, ranks keep copies
    return EngineMemory(weights, token, min(device * ENGINE_FRACTION, device - taken) - weights)

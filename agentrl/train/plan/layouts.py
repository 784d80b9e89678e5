"""`agentrl plan`: the layouts of a model on a cluster, ranked by the expected time of a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.plan import Assignment, Demand, Layout, Wanted, fit_assignment
from agentrl.config import LoraConfig, Section
from agentrl.errors import ConfigError
from agentrl.train.plan.adapter import FLOAT32, adapter_parameters, with_adapter
from agentrl.train.plan.devices import SLEEPING
from agentrl.train.plan.memory import (
    GIB,
    OVERHEAD,
    EngineMemory,
    Numbers,
    Split,
    TrainerMemory,
    engine_memory,
    trainer_memory,
)
from agentrl.train.plan.shapes import Shape
from agentrl.train.plan.step import Rates, StepTime, StepWork, generate_seconds, publish_seconds, train_seconds
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.settings import MegatronConfig

POWERS = (1, 2, 4, 8, 16, 32)
ALIKE = 1.15
"""Times by less than this factor apart are taken for the same: the formulas know no better."""


class PlanConfig(Section):
    """The settings of `agentrl plan`."""

    model: str
    """A model folder, a config.json, or one of: smollm2-135m, qwen2.5-0.5b, qwen2.5-vl-3b, qwen2.5-vl-7b, qwen3-0.6b,
    qwen3-1.7b, qwen3-8b, qwen3-30b-a3b, qwen3-235b-a22b, glm-4.5-air, deepseek-v3, kimi-k2."""
    trainer: Literal["megatron", "fsdp"] = "megatron"
    """The trainer whose layouts are searched: megatron, by all of its kinds of parallelism; fsdp, which has
    data-parallel ranks."""
    nodes: PositiveInt = 1
    """Nodes of the cluster, all alike."""
    gpus: PositiveInt = 8
    """GPUs of each node."""
    memory: PositiveFloat = 80.0
    """GiB of each GPU."""
    cpus: PositiveInt = 64
    """CPU cores of each node."""
    environments: NonNegativeInt = 0
    """Environment workers, a CPU core each."""
    address: str | None = None
    """A running Ray cluster (`auto` or host:port), whose nodes take the place of nodes, gpus and cpus."""
    token_budget: PositiveInt = 16384
    """Tokens of a forest (trainer.token_budget)."""
    sessions: PositiveInt = 512
    """Sessions of a step (rollout.groups_per_step x rollout.group_size)."""
    prompt: PositiveInt = 2048
    """Tokens of a session that are not sampled: prompts, observations."""
    sampled: PositiveInt = 2048
    """Tokens of a session that are sampled."""
    longest: PositiveInt | None = None
    """Tokens that the longest session samples; twice `sampled` where it is not given."""
    forwards: NonNegativeInt = 0
    """Forward passes beside training's: of a reference, or of the policy before its update."""
    staleness: Literal[0, 1] = 1
    """1: engines on GPUs of their own generate the next step's sessions while the trainer learns; 0: they take turns
    (rollout.staleness)."""
    batch: PositiveInt = 256
    """The most sequences that an engine decodes at once (engine.max_batch)."""
    reference: bool = False
    """True: a reference's weights are kept on the devices (algo.kl_coef with trainer.reference=copy)."""
    lora_rank: NonNegativeInt = 0
    """The rank of an adapter that is trained in the whole model's place, and published alone (lora.rank,
    engine.adapter_rank); 0: the whole model is."""
    tflops: PositiveFloat = 989.0
    """Arithmetic of a GPU, in 10^12 operations each second; the defaults of the rates are an H100's."""
    bandwidth: PositiveFloat = 3350.0
    """Reading a GPU's memory, in GB each second."""
    link: PositiveFloat = 450.0
    """Between the GPUs of a node, each way, in GB each second."""
    network: PositiveFloat = 400.0
    """Between nodes, each way for each node, in GB each second; a node with one port of 400 Gbit has 50."""
    show: PositiveInt = Field(default=5)
    """The number of layouts that are printed."""

    @property
    def rates(self) -> Rates:
        """The rates of devices and links."""
        return Rates(self.tflops, self.bandwidth, self.link, self.network)

    @property
    def work(self) -> StepWork:
        """The work of a step."""
        return StepWork(self.sessions, self.prompt, self.sampled, self.batch, self.longest or 0, self.forwards)

    @property
    def described(self) -> list[ClusterNode]:
        """The nodes that it describes."""
        return [ClusterNode(f"node-{i}", self.cpus, self.gpus, gpu_memory=self.memory) for i in range(self.nodes)]


@dataclass(frozen=True)
class Candidate:
    """A layout with what it takes.

    Attributes:
        layout: how trainer and engines share GPUs.
        split: the trainer's ranks.
        numbers: how it keeps its numbers.
        engines: how many engines there are.
        colocated: how many of them are on the trainer's GPUs.
        ranks: GPUs of each.
        trainer: memory on a device of the trainer.
        engine: memory on a device of an engine.
        time: of a step.
        assignment: where everything is; None where it is not placed yet.
        lora_rank: of the adapter that is trained; 0: the whole model is.
    """

    layout: Layout
    split: Split
    numbers: Numbers
    engines: int
    colocated: int
    ranks: int
    trainer: TrainerMemory
    engine: EngineMemory
    time: StepTime
    assignment: Assignment | None = None
    lora_rank: int = 0

    @property
    def settings(self) -> str:
        """The settings that choose this candidate."""
        split = self.split
        shared = ["fleet.colocated=true"] if self.colocated else []
        shared += [f"fleet.colocated_engines={self.colocated}"] if self.layout == "mixed" else []
        shared += ["rollout.staleness=1"] if self.time.overlaps else []
        parallel = (
            f"trainer.{name}_parallel={getattr(split, name)}"
            for name in ("tensor", "pipeline", "context", "expert")
            if getattr(split, name) > 1
        )
        again = ["trainer.recompute=full"] if self.numbers.recompute else []
        again += ["trainer.offload_optimizer=true"] if self.numbers.offloaded else []
        shared += [f"lora.rank={self.lora_rank} engine.adapter_rank={self.lora_rank}"] if self.lora_rank else []
        engines = [f"fleet.engines={self.engines}", f"engine.server.tp_size={self.ranks}"]
        trainer = [f"trainer={self.numbers.trainer}", "trainer.dtype=bfloat16", f"trainer.ranks={split.ranks}"]
        return " ".join([*trainer, *parallel, *again, "engine=sglang", *engines, *shared])

    @property
    def parts(self) -> tuple[int, ...]:
        """The sizes of what has to work together: fewer is simpler."""
        split, numbers = self.split, self.numbers
        kinds = (self.layout == "mixed") + numbers.offloaded
        return kinds, split.tensor * split.pipeline * split.context * self.ranks, split.expert, numbers.recompute


def rank_layouts(shape: Shape, config: PlanConfig, nodes: Sequence[ClusterNode]) -> list[Candidate]:
    """The best layouts that fit, the fastest first; among those about as fast as each other, the simplest."""
    nodes = [node if node.gpu_memory else replace(node, gpu_memory=config.memory) for node in nodes if node.alive]
    every = list(_candidates(shape, config, nodes))
    best = min((each.time.total for each in every), default=0.0)
    every.sort(key=lambda each: (int(math.log(each.time.total / best, ALIKE)), each.parts, each.time.total))
    found: list[Candidate] = []
    for candidate in every:
        if len(found) == config.show:
            break
        if any((each.layout, each.split.ranks, each.ranks) == _group(candidate) for each in found):
            continue  # a slower form of one that is there
        assignment = fit_assignment(nodes, request_places(candidate, config.environments))
        if assignment is not None:
            found.append(replace(candidate, assignment=assignment))
    if not found:
        raise ConfigError(_nothing(shape, config, nodes))
    return found


def _group(candidate: Candidate) -> tuple[Layout, int, int]:
    return candidate.layout, candidate.split.ranks, candidate.ranks


def request_places(candidate: Candidate, environments: int = 0) -> Wanted:
    """Return a candidate's request to the cluster."""
    split = candidate.split
    return Wanted(
        Demand("trainer", split.ranks // split.tensor, split.tensor, memory=candidate.trainer.total / GIB),
        Demand("engine", candidate.engines, candidate.ranks),
        (Demand("environments", environments, cpus=1.0),),
        candidate.layout,
        candidate.colocated if candidate.layout == "mixed" else None,
    )


def _candidates(shape: Shape, config: PlanConfig, nodes: Sequence[ClusterNode]) -> Iterator[Candidate]:
    total, largest = sum(node.gpus for node in nodes), max((node.gpus for node in nodes), default=0)
    device = min((node.gpu_memory for node in nodes if node.gpus), default=0.0) * GIB
    work, rates = config.work, config.rates
    widths = [ranks for ranks in POWERS if ranks <= largest and shape.num_attention_heads % ranks == 0]
    ways = _fsdp_splits(total) if config.trainer == "fsdp" else _splits(shape, total, largest)
    trained = adapter_parameters(shape, LoraConfig(rank=config.lora_rank))
    moved = FLOAT32 * trained or 2 * shape.parameters
    for split, numbers in ways:
        numbers = replace(numbers, reference=config.reference, adapter=trained)
        memory = trainer_memory(shape, split, numbers, config.token_budget)
        memory = with_adapter(memory, numbers) if trained else memory
        if memory.total + OVERHEAD > device:
            continue
        train = train_seconds(shape, split, numbers, work, rates, config.token_budget, largest)
        resident = memory.resident
        room = memory.total + OVERHEAD + SLEEPING <= device
        for ranks in widths:
            beside, apart = (split.ranks // ranks if room else 0), (total - split.ranks) // ranks
            for layout, colocated, others in _shares(beside, apart):
                taken = resident + OVERHEAD if colocated else 0.0
                own = engine_memory(shape, ranks, 2, device, taken)
                together, alone = (
                    generate_seconds(shape, own, engines, ranks, work, rates)
                    for engines in (colocated + others, others * config.staleness)
                )
                if together < float("inf"):
                    across = (split.ranks if layout == "colocated" else total) > largest
                    step = StepTime(together, train, publish_seconds(moved, rates, across=across), alone)
                    yield Candidate(
                        *(layout, split, numbers, colocated + others, colocated, ranks, memory, own, step),
                        lora_rank=config.lora_rank,
                    )


def _shares(beside: int, apart: int) -> Iterator[tuple[Layout, int, int]]:
    """Each layout with its engines on the trainer's GPUs and on their own, of so many that have room there."""
    if apart:
        yield "disaggregated", 0, apart
    if beside:
        yield "colocated", beside, 0
    if beside and apart:
        yield "mixed", beside, apart


def _sizes(total: int) -> list[int]:
    """Numbers of ranks: 1, 2, 4 … and all."""
    return sorted({ranks for ranks in (*(2**i for i in range(20)), total) if ranks <= total})


def _fsdp_splits(total: int) -> Iterator[tuple[Split, Numbers]]:
    for ranks in _sizes(total):
        yield from ((Split(data=ranks), numbers) for numbers in _numbers("fsdp"))


def _numbers(trainer: Literal["megatron", "fsdp"]) -> Iterator[Numbers]:
    """Numbers with and without recomputation, and with the optimizer's state in the CPU's memory."""
    for recompute in (False, True):
        yield Numbers(trainer, recompute=recompute)
    yield Numbers(trainer, recompute=True, offloaded=True)


def _splits(shape: Shape, total: int, largest: int) -> Iterator[tuple[Split, Numbers]]:
    tensors = [each for each in POWERS if each <= largest]
    experts = POWERS if shape.num_experts else (1,)
    for ranks, tensor, pipeline, context, expert in itertools.product(
        _sizes(total), tensors, (1, 2, 4, 8), (1, 2, 4), experts
    ):
        if ranks % (tensor * pipeline * context) or ranks % (pipeline * expert):
            continue
        try:
            layout = layout_of(
                MegatronConfig(
                    ranks=ranks,
                    tensor_parallel=tensor,
                    pipeline_parallel=pipeline,
                    context_parallel=context,
                    expert_parallel=expert,
                    dtype="bfloat16",
                ),
                shape,
            )
        except ConfigError:
            continue
        split = Split(tensor, pipeline, context, expert, layout.data)
        yield from ((split, numbers) for numbers in _numbers("megatron"))


def _nothing(shape: Shape, config: PlanConfig, nodes: Sequence[ClusterNode]) -> str:
    total, largest = sum(node.gpus for node in nodes), max((node.gpus for node in nodes), default=0)
    if not total:
        return "the cluster has no GPU; `agentrl train … dry_run=true` says what a run takes on CPUs"
    state = shape.parameters * (2 + 4 + 12) / GIB
    engine = shape.parameters * 2 / GIB
    return (
        f"no layout fits: there are {total} GPUs of {config.memory:g} GiB, {largest} on a node, "
        f"{total * config.memory:.0f} GiB in all. Weights, gradients and optimizer state take {state:.0f} GiB, an "
        f"engine {engine:.0f} GiB of a node and the cache of a session ({config.work.length} tokens); "
        "more nodes, or more memory on each GPU"
    )

"""`agentrl train … dry_run=true`: what a run would take, without starting any of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl import cluster
from agentrl.cluster.base import Node
from agentrl.cluster.placement import Assignment, place
from agentrl.config import RunConfig
from agentrl.models.registry import cache_folder
from agentrl.models.tiny import TinyShape
from agentrl.rollout.engines import ENGINES
from agentrl.train.algorithms import make_algorithm
from agentrl.train.backends.fsdp.settings import FsdpConfig
from agentrl.train.backends.megatron.settings import MegatronConfig
from agentrl.train.placing import asked, split_of
from agentrl.train.plan.memory import GIB, EngineMemory, Numbers, Split, TrainerMemory, engine_memory, trainer_memory
from agentrl.train.plan.shapes import Shape, shape_of
from agentrl.train.plan.step import (
    FOREST_BYTES,
    Rates,
    StepTime,
    Work,
    exchanged,
    generate_seconds,
    measured_rates,
    publish_seconds,
    train_seconds,
)
from agentrl.train.setup import TINY

USED = 0.5
"""The part of `rollout.session_tokens` that a session is expected to have, half of it sampled; an assumption."""


def described(config: RunConfig, rates: Rates | None = None) -> Iterator[str]:
    """The lines of a dry run.

    Args:
        config: the run.
        rates: of its devices; None are measured on a CPU, and an H100's on GPUs.

    Raises:
        ConfigError, InvalidInput: the model can't be planned, or the parts don't fit on the nodes.
    """
    shape, nodes = model_shape(config), nodes_of(config)
    on_gpus = config.trainer.device == "cuda"
    split = split_of(config, shape, nodes)
    ranks = ENGINES.find(config.engine.name).ranks(config.engine)
    trainer = trainer_memory(shape, split, numbers_of(config), config.trainer.token_budget)
    width = 4 if config.engine.dtype == "float32" else 2
    device = max((node.gpu_memory for node in nodes), default=0.0) * GIB if on_gpus else host_memory()
    engine = engine_memory(shape, ranks, width, device)
    assignment = place(nodes, asked(config, split, nodes).wanted(trainer.total / GIB))
    yield f"dry run of env={config.env.name} model={config.model.name}: nothing is started"
    yield f"model: {shape.parameters:,} parameters, {shape.num_hidden_layers} layers of {shape.hidden_size}"
    yield from _where(assignment, nodes, config)
    yield from _memory(trainer, engine, config, device)
    work = work_of(config)
    yield from _flows(shape, split, numbers_of(config), work, config.trainer.token_budget, engines_of(config), width)
    known = rates or (Rates() if on_gpus else measured_rates())
    step = step_time(config, shape, split, engine, work, known, ranks)
    whose = "given" if rates else "an H100's data sheet" if on_gpus else "this CPU, measured now"
    yield (
        f"a step: about {step.total:.3g} s = generate {step.generate:.3g} s {'beside' if step.overlaps else '+'} "
        f"train {step.train:.3g} s + publish {step.publish:.3g} s (rates: {whose}; sessions of {work.length} tokens)"
    )
    yield from (f"warning: {each}" for each in _warnings(config, assignment, nodes, trainer, step, device))


def model_shape(config: RunConfig) -> Shape:
    """The shape of a run's model; a name of `agentrl models` needs to be in the cache."""
    name = config.model.name
    if name == TINY:
        tiny = TinyShape()
        sizes = (tiny.width, tiny.layers, tiny.heads, tiny.kv_heads, tiny.width // tiny.heads, tiny.mlp, tiny.vocab)
        return Shape("llama", *sizes, tie_word_embeddings=True)
    cached = cache_folder() / name
    return shape_of(cached if not Path(name).exists() and cached.is_dir() else name)


def nodes_of(config: RunConfig) -> list[Node]:
    """The run's nodes: this machine, or those of the running Ray cluster at `cluster.address`."""
    if config.cluster.name == "ray" and config.cluster.address is not None:
        with cluster.opened(config.cluster, None) as opened:
            return [node for node in opened.nodes() if node.alive]
    return cluster.LocalCluster().nodes()


def host_memory() -> float:
    """Bytes of this machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def numbers_of(config: RunConfig) -> Numbers:
    """How the trainer keeps its numbers."""
    trainer = config.trainer
    megatron = isinstance(trainer, MegatronConfig)
    needs = make_algorithm(config.algo).needs
    keeps = bool(config.algo.kl_coef) or needs.reference or needs.reward_model
    return Numbers(
        "megatron" if megatron else "fsdp" if isinstance(trainer, FsdpConfig) else "torch",
        trainer.dtype,
        recompute=getattr(trainer, "recompute", "none") == "full",
        reward_model=needs.reward_model,
        reference=keeps and (not megatron or getattr(trainer, "reference", "") == "copy"),
        average=not megatron and getattr(trainer, "average_decay", None) is not None,
        distributed=isinstance(trainer, MegatronConfig) and trainer.shares_state,
        offloaded=bool(getattr(trainer, "offload_optimizer", False)),
    )


def engines_of(config: RunConfig) -> int:
    """How many engines a run has."""
    return len(config.fleet.urls) or config.fleet.engines


def work_of(config: RunConfig) -> Work:
    """A step's work, with sessions of half of their limit."""
    shape = config.rollout
    half = max(int(shape.session_tokens * USED / 2), 1)
    return Work(shape.groups_per_step * shape.group_size, half, half, config.engine.max_batch)


def step_time(
    config: RunConfig, shape: Shape, split: Split, engine: EngineMemory, work: Work, rates: Rates, ranks: int
) -> StepTime:
    """The expected time of a step."""
    numbers, budget = numbers_of(config), config.trainer.token_budget
    return StepTime(
        generate_seconds(shape, engine, engines_of(config), ranks, work, rates),
        train_seconds(shape, split, numbers, work, rates, budget, split.ranks),
        publish_seconds(shape, rates, across=config.cluster.name == "ray"),
        overlaps=config.rollout.staleness > 0,
    )


def _where(assignment: Assignment, nodes: Sequence[Node], config: RunConfig) -> Iterator[str]:
    yield f"{nodes[0].name}: the loop, the gateway" + ("" if config.cluster.environments else ", sessions")
    for node in nodes:
        for each in assignment.on(node.name):
            gpus = f" on GPUs {', '.join(map(str, each.devices))}" if each.devices else ""
            yield f"{node.name}: {each.role} {each.number}{gpus}{', colocated' if each.colocated else ''}"


def _memory(trainer: TrainerMemory, engine: EngineMemory, config: RunConfig, device: float) -> Iterator[str]:
    parts = ("weights", "gradients", "optimizer", "activations", "reference", "average", "gathered", "logits")
    each = ", ".join(f"{name} {size(getattr(trainer, name))}" for name in parts if getattr(trainer, name))
    yield f"memory of a trainer rank: {size(trainer.total)} = {each} (forests of {config.trainer.token_budget} tokens)"
    sessions = min(config.engine.max_batch, work_of(config).sessions)
    cache = sessions * config.rollout.session_tokens * engine.token
    yield (
        f"memory of an engine rank: weights {size(engine.weights)}, key-value cache {size(cache)} for {sessions} "
        f"sessions of {config.rollout.session_tokens} tokens ({size(engine.token)} a token)"
    )
    if not device:
        yield "memory of the GPUs: not known here"


def _flows(
    shape: Shape, split: Split, numbers: Numbers, work: Work, budget: int, engines: int, width: int
) -> Iterator[str]:
    yield f"in a step, environments -> loop -> trainer: {size(work.tokens * FOREST_BYTES)} of sessions and forests"
    yield f"in a step, trainer -> {engines} engines: {size(shape.parameters * width)} of weights for each"
    if split.data > 1:
        gradients = exchanged(numbers, work, budget, split) * shape.parameters / split.tensor / split.pipeline
        yield f"in a step, between data-parallel ranks: {size(gradients)} of gradients and weights for each"


def _warnings(
    config: RunConfig,
    assignment: Assignment,
    nodes: Sequence[Node],
    trainer: TrainerMemory,
    step: StepTime,
    device: float,
) -> Iterator[str]:
    idle = {node.name: assignment.idle(node) for node in nodes}
    for name, gpus in idle.items():
        if gpus:
            yield f"GPUs {', '.join(map(str, gpus))} of {name} are idle"
    if device and trainer.total > device:
        yield f"a trainer rank needs {size(trainer.total)}, and there are {size(device)}"
    if step.publish > 0.2 * step.total:
        yield f"weights take {step.publish / step.total:.0%} of a step: the link to the engines is the bottleneck"
    if step.overlaps and max(step.generate, step.train) > 2 * min(step.generate, step.train):
        waits = "trainer" if step.generate > step.train else "engines"
        yield f"the {waits} wait more than half of each step"


def size(count: float) -> str:
    """Bytes in words: `1.5 GiB`."""
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.3g} B"

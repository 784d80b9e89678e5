"""Policies beside the main one in a dry run, those that an algorithm asks, that play, that learn: memory and places."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from agentrl.cluster import ClusterNode
from agentrl.config import MODEL, PAST, START, EngineConfig, FleetConfig, ModelConfig, Policies, PolicyConfig
from agentrl.config.learners import LearnerConfig, Learners, named_as_given
from agentrl.models.registry import cache_folder
from agentrl.rollout.engines import ENGINES
from agentrl.train.algorithms import make_algorithm
from agentrl.train.plan.adapter import FLOAT32, trainer_needs
from agentrl.train.plan.memory import LOGITS, Split
from agentrl.train.plan.placing import is_attached, split_of
from agentrl.train.plan.shapes import Shape, shape_of
from agentrl.train.trainers import TRAINERS
from agentrl.types import MAIN


def teachers_memory(asked: Policies, student: Shape, token_budget: int) -> dict[str, float]:
    """Bytes of each teacher that the run keeps, by its policy's name; one behind a URL takes none here.

    One that reads forests has float32 weights, and the activations of one layer at a time; another engine's are in its
    own precision, without its cache.
    """
    local = {name: own for name, own in sorted(asked.items()) if not own.remote}
    return {name: _bytes(own, played_shape(own.model, student), token_budget) for name, own in local.items()}


def players_memory(
    policies: Policies, learners: Learners, asked: Container[str], main: Shape, *, imitates: bool
) -> dict[str, float]:
    """Bytes of each policy that plays with weights of its own, by its name: its engines', and its trainer's.

    Earlier versions have an engine each; an engine's cache is not counted. Policies with adapters hold their base once.
    """
    found = {}
    for name, own in policies.items():
        if own.name not in (MODEL, PAST) or name in asked:
            continue
        whose = policies.get(own.past.of, own) if own.name == PAST else own
        with named_as_given(policies, name):
            shape = main if own.name == PAST and own.past.of == MAIN else played_shape(whose.model, main)
        engines = own.past.size + 1 if own.name == PAST else own.fleet.engines
        engines = 0 if is_attached(own.engine, own.fleet) else engines
        found[name] = engines * shape.parameters * (4.0 if own.engine.dtype == "float32" else 2.0)
        if own.learns:
            found[name] += _trainers_bytes(learners[name], shape, learners[MAIN].model.name, imitates)
    return found


def _trainers_bytes(own: LearnerConfig, shape: Shape, base: str, imitates: bool) -> float:
    split = TRAINERS.find(own.trainer.name).split(own.trainer, shape, 0)
    numbers, found = trainer_needs(own, make_algorithm(own.algo), shape, split, imitates=imitates)
    if not numbers.adapter or imitates:
        return found.total
    shared = found.weights - FLOAT32 * numbers.adapter if own.model.name in (START, base) else 0.0
    return found.total - shared


def played_shape(model: ModelConfig, student: Shape) -> Shape:
    """Return the shape of the model that a policy plays with; `student`: of the run's own."""
    name = model.name
    cached = cache_folder() / name
    return student if name == START else shape_of(cached if cached.is_dir() else name)


def _bytes(own: PolicyConfig, shape: Shape, token_budget: int) -> float:
    if not ENGINES.find(own.engine.name).in_process(own.engine):
        return float(shape.parameters) * (4 if own.engine.dtype == "float32" else 2)
    logits = min(LOGITS, 12 * token_budget * shape.vocab_size)
    return 4.0 * shape.parameters + 4.0 * token_budget * (shape.layer_activations + shape.hidden_size) + logits


def splits_of_others(
    learners: Learners, policies: Policies, shape: Shape, nodes: Sequence[ClusterNode]
) -> dict[str, Split]:
    """The splits of policies that learn beside the main one."""
    found = {}
    for name, own in learners.items():
        if name != MAIN:
            with named_as_given(policies, name):
                found[name] = split_of(own.trainer, played_shape(own.model, shape), nodes)
    return found


def describe_processes(
    learners: Learners, policies: Policies, shape: Shape, nodes: Sequence[ClusterNode]
) -> Iterator[str]:
    """A line for each of several policies that learn on one machine: where it computes, in which processes."""
    for name, own in learners.items():
        ranks = 0
        if TRAINERS.find(own.trainer.name).has_ranks:
            with named_as_given(policies, name):
                played = shape if name == MAIN else played_shape(own.model, shape)
                ranks = split_of(own.trainer, played, nodes).ranks
        trains = (
            f"in {ranks} {'process' if ranks == 1 else 'processes'} of its own" if ranks else "in the loop's process"
        )
        generates = _describe_engines(own.engine, own.fleet)
        yield f"{name} learns: trainer={own.trainer.name} {trains}, engine={own.engine.name} {generates}"


def _describe_engines(engine: EngineConfig, fleet: FleetConfig) -> str:
    """Say where a policy's engines generate."""
    at = fleet.urls or ([url] if (url := getattr(engine, "url", None)) else [])
    if at:
        return f"at {', '.join(at)}"
    if ENGINES.find(engine.name).in_process(engine):
        return "in the loop's"
    return f"in {fleet.engines} of its own" if fleet.engines > 1 else "in one of its own"

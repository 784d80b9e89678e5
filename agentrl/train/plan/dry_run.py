"""`agentrl train … dry_run=true`: what a run would take, without starting any of it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from agentrl import cluster
from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.gpus import measure_gpus
from agentrl.cluster.placement.inventory import on_gpus
from agentrl.cluster.placement.plan import Assignment, Place, place
from agentrl.common import custom_code
from agentrl.config import (
    AlgoConfig,
    ClusterConfig,
    DataConfig,
    EngineConfig,
    EnvConfig,
    FleetConfig,
    ModelConfig,
    Policies,
    RewardConfig,
    RolloutConfig,
    RunConfig,
)
from agentrl.config.learners import LearnerConfig, Learners
from agentrl.envs.rewards import REWARDS, ModelMemory
from agentrl.errors import ConfigError
from agentrl.models.folders import model_settings
from agentrl.models.registry import cache_folder
from agentrl.models.tiny import TinyShape
from agentrl.rollout.engines import ENGINES
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.setup import TINY
from agentrl.train.plan.adapter import FLOAT32, describe_adapter, trainer_needs
from agentrl.train.plan.agent_checks import check_players
from agentrl.train.plan.devices import Devices, devices_of, size, too_full, with_models
from agentrl.train.plan.memory import GIB, EngineMemory, Numbers, Split, TrainerMemory, engine_memory
from agentrl.train.plan.placing import RunDemand, frozen_engines, is_attached, run_demand, split_of
from agentrl.train.plan.shapes import KNOWN, Shape, UncountedModel, shape_of
from agentrl.train.plan.step import (
    FOREST_BYTES,
    SESSION_BYTES,
    Rates,
    StepTime,
    StepWork,
    exchanged_bytes,
    generate_seconds,
    in_words,
    measured_rates,
    publish_seconds,
    train_seconds,
)
from agentrl.train.plan.teachers import describe_processes, players_memory, splits_of_others, teachers_memory
from agentrl.train.trainers import suitable
from agentrl.types import MAIN

USED = 0.5
"""The part of `rollout.session_tokens` that a session is expected to have, half of it sampled; an assumption."""


def describe_run(
    config: RunConfig, rates: Rates | None = None, on: Sequence[ClusterNode] | None = None
) -> Iterator[str]:
    """The lines of a dry run.

    Args:
        config: the run.
        rates: of its devices; None are measured on a CPU, and an H100's on GPUs.
        on: the nodes; None are those that the run itself would have.

    Raises:
        ConfigError, InvalidInput: the model's files are unreadable, or the parts don't fit on the nodes.
    """
    if config.data is None and (config.agents or config.policies):  # else one policy plays one agent
        check_players(config.env, config.fleets, config.agents, config.policies, config.program)
    try:
        yield from _describe_counted(config, rates, on)
    except UncountedModel as error:  # which is known before the first line
        yield from _describe_uncounted(config, str(error), on)


def _describe_uncounted(config: RunConfig, why: str, on: Sequence[ClusterNode] | None) -> Iterator[str]:
    """The lines of a run with a model that is not counted: what holds whatever memory it takes."""
    suitable(config.trainer, make_algorithm(config.algo), config.lora)
    yield _first_line(config.env, config.data, config.model)
    yield f"warning: {why}; so memory and time are not told, which says nothing of whether the run goes"
    if config.data is not None or config.policies:
        return
    nodes = nodes_of(config.cluster) if on is None else on
    path = _model_path(config.model.name)
    split = split_of(config.trainer, model_settings(path if path.is_dir() else path.parent), nodes)
    demand = run_demand(config.learners, config.policies, config.cluster, {MAIN: split}, nodes)
    assignment = places(demand, config.learners[MAIN], config.cluster, 0.0, nodes)
    yield from _where(assignment, nodes, config.agent, config.cluster)
    yield from _describe_traffic(config.cluster, work_of(config.rollout, config.engine, config.algo).tokens)


def _describe_counted(config: RunConfig, rates: Rates | None, on: Sequence[ClusterNode] | None) -> Iterator[str]:
    """The lines of a run whose models are all counted; arguments and errors as of `describe_run`."""
    algorithm, shape = make_algorithm(config.algo), model_shape(config.model)
    suitable(config.trainer, algorithm, config.lora)
    nodes, memory = (nodes_of(config.cluster), host_memory()) if on is None else (on, 0.0)  # theirs is not known
    split, ranks = split_of(config.trainer, shape, nodes), ENGINES.find(config.engine.name).ranks(config.engine)
    learners, policies, imitates = config.learners, config.policies, config.warm_start.steps > 0
    numbers, trainer = trainer_needs(learners[MAIN], algorithm, shape, split, imitates=imitates)
    on_ray, averaged = config.cluster.name == "ray", config.eval.weights == "averaged"
    splits = {MAIN: split} | (splits_of_others(learners, policies, shape, nodes) if on_ray else {})
    demand = run_demand(learners, policies, config.cluster, splits, nodes, averaged=averaged)
    assignment = places(demand, learners[MAIN], config.cluster, trainer.total, nodes)
    if config.data is not None:  # it starts no engine
        assignment = Assignment(tuple(place for place in assignment.places if place.role != "engine"))
    placed = {*splits, *frozen_engines(policies, config.cluster)}
    asked = asked_models(config.rewards, policies, learners, config.teachers, shape, placed, imitates=imitates)
    devices = with_models(devices_of(assignment, nodes, memory), asked.values(), memory)
    engine = engine_of(shape, ranks, width_of(config.engine), devices, trainer)
    budget, shown = config.trainer.token_budget, config.rollout.session_tokens
    sessions = _at_once(config.rollout, config.engine, config.fleet)
    if is_attached(config.engine, config.fleet):  # their devices are not known: they have what is asked
        engine = replace(engine, cache=sessions * shown * engine.token)
    by_gpu = any(each.numbers for each in devices if each.trainers)
    yield from _describe_model(config.env, config.data, config.model, shape)
    yield from describe_adapter(numbers, config.warm_start)
    yield from _where(assignment, nodes, config.agent, config.cluster)
    if config.learned and not on_ray:
        yield from describe_processes(learners, policies, shape, nodes)
    yield from _memory(trainer, engine, budget, sessions if config.data is None else 0, shown)
    yield from asked
    yield from (f"memory of {each.name}: {_on_device(each, trainer, engine)}" for each in devices)
    if config.data is not None:
        yield from (f"warning: {each}" for each in too_full(devices, trainer, engine, 0))
        return
    work, moved = work_of(config.rollout, config.engine, config.algo), published_bytes(config.engine, shape, numbers)
    yield from _describe_traffic(config.cluster, work.tokens)
    yield from _describe_flows(engines_of(config.fleet), moved, shape, split, numbers, work, budget)
    known = rates or (Rates() if by_gpu else measured_rates())
    generate = partial(generate_seconds, shape, engine, ranks=ranks, work=work, rates=known)
    learn = train_seconds(shape, split, numbers, work, known, budget, split.ranks)
    publish = publish_seconds(moved, known, across=on_ray)
    step = _step_of(config.fleet, config.rollout.staleness, generate, learn, publish)
    by_role = {"trainer": config.trainer.device, "engine": config.engine.device} if on_ray else {}
    whose = "given" if rates else "an H100's data sheet" if by_gpu else "this CPU, measured now"
    yield f"a step: {_describe_step(step)} (rates: {whose}; sessions of {work.length} tokens)"
    more = _warnings(assignment, nodes, step, by_role, shared=config.fleet.shared > 0)
    yield from (f"warning: {each}" for each in (*too_full(devices, trainer, engine, shown, sessions), *more))


def _step_of(
    fleet: FleetConfig, staleness: int, generate: Callable[[int], float], learn: float, publish: float
) -> StepTime:
    """The parts of a step; beside a trainer, engines that share its devices do not generate."""
    count = engines_of(fleet)
    return StepTime(generate(count), learn, publish, generate(count - fleet.shared if staleness else 0))


def _describe_model(env: EnvConfig, data: DataConfig | None, model: ModelConfig, shape: Shape) -> Iterator[str]:
    yield _first_line(env, data, model)
    yield f"model: {shape.parameters:,} parameters, {shape.num_hidden_layers} layers of {shape.hidden_size}"
    if model.trust_remote_code and (code := custom_code.files(Path(model.name).expanduser())):
        yield f"Python code of the model's folder runs (model.trust_remote_code=true): {', '.join(code)}"


def _first_line(env: EnvConfig, data: DataConfig | None, model: ModelConfig) -> str:
    what = f"env={env.name}" if data is None else f"data={data.name}"
    return f"dry run of {what} model={model.name}: nothing is started"


def _describe_traffic(limits: ClusterConfig, tokens: int) -> Iterator[str]:
    """A line for each way that a step's sessions and forests take."""
    sessions = size(tokens * SESSION_BYTES)
    if limits.rewards:
        yield f"in a step, environments -> reward workers: {sessions} of sessions"
    if limits.gateways:
        yield f"in a step, gateway workers -> environments: {sessions} of sessions"
    over = "the process that holds sessions" if limits.holds_sessions else "loop"
    yield f"in a step, environments -> {over} -> trainer: {size(tokens * FOREST_BYTES)} of sessions and forests"


def _describe_step(step: StepTime) -> str:
    learns = f"train {in_words(step.train)} + publish {in_words(step.publish)}"
    if not math.isfinite(step.generate):
        return f"no engine has room for a session; {learns}"
    with_it = "beside" if step.overlaps else "+"
    return f"about {in_words(step.total)} = generate {in_words(step.generate)} {with_it} {learns}"


def asked_models(
    rewards: Mapping[str, RewardConfig],
    policies: Policies,
    learners: Learners,
    asked: Policies,
    shape: Shape,
    placed: Collection[str],
    *,
    imitates: bool,
) -> dict[str, tuple[float, bool]]:
    """Models beside the main policy's: of each a line, its bytes, and whether it is on a GPU where there is one.

    Policies that are `placed` have devices of their own, and take no bytes of the main one's. `asked`: the teachers
    among them. `shape`: of the main policy's model.
    """
    found = {}
    for name, each in reward_models(rewards).items():
        on = "a GPU" if each.device == "cuda" else "the CPU"
        line = f"memory of rewards.{name} on {on}: weights {size(each.weights)}, a batch {size(each.batch)}"
        found[line] = (each.total, each.device == "cuda")
    for name, taken in teachers_memory(asked, shape, learners[MAIN].trainer.token_budget).items():
        line = f"memory of the teacher {name}: {size(taken)}, from the first step on"
        found[line] = (taken, policies[name].engine.device != "cpu")
    for name, taken in players_memory(policies, learners, asked, shape, imitates=imitates).items():
        parts = "trainer and engine" if policies[name].learns else "engines"
        line = f"memory of policies.{name}: {size(taken)} for {parts}, and a cache"
        found[line] = (0.0 if name in placed else taken, policies[name].engine.device != "cpu")
    return found


def reward_models(rewards: Mapping[str, RewardConfig]) -> dict[str, ModelMemory]:
    """Return the memory that the models of the run's rewards take, by the rewards' names."""
    found = {name: REWARDS.find(each.name).memory(each) for name, each in rewards.items() if each.resident}
    return {name: each for name, each in found.items() if each is not None}


def model_shape(model: ModelConfig) -> Shape:
    """The shape of a run's model; a name of `agentrl models` needs to be in the cache."""
    name = model.name
    if name == TINY:
        tiny = TinyShape()
        sizes = (tiny.width, tiny.layers, tiny.heads, tiny.kv_heads, tiny.width // tiny.heads, tiny.mlp, tiny.vocab)
        return Shape("llama", *sizes, tie_word_embeddings=True)
    return shape_of(name if name.lower() in KNOWN else _model_path(name))


def _model_path(name: str) -> Path:
    """The folder or config.json that a run's setting `model` names, in the cache or elsewhere."""
    cached = cache_folder() / name
    return cached if not Path(name).exists() and cached.is_dir() else Path(name).expanduser()


def nodes_of(machines: ClusterConfig) -> list[ClusterNode]:
    """The run's nodes: this machine, or those of the running Ray cluster at `cluster.address`."""
    if machines.name == "ray" and machines.address is not None:
        with cluster.open_cluster(machines, None) as opened:
            return [node for node in opened.nodes() if node.alive]
    found = measure_gpus()
    (here,) = cluster.LocalCluster().nodes()
    return [replace(here, gpus=len(found), gpu_memory=min(found, default=0.0))]


def places(
    run: RunDemand, own: LearnerConfig, machines: ClusterConfig, memory: float, nodes: Sequence[ClusterNode]
) -> Assignment:
    """Return the places of a run on a cluster's nodes; on this machine alone all count GPUs from the first.

    `memory`: bytes that a trainer's rank needs.
    """
    if machines.name == "ray":
        return place(nodes, run.wanted(memory / GIB))
    if len(nodes) > 1:
        raise ConfigError(f"cluster={machines.name} has one machine, not {len(nodes)}: cluster=ray has several")
    (here,) = nodes
    ranks = ENGINES.find(own.engine.name).ranks(own.engine) if run.units["engine"] else 0
    wide = {
        "trainer": run.members["trainer"] if on_gpus(own.trainer.device, nodes) else 0,
        "engine": ranks if on_gpus(own.engine.device, nodes) else 0,
    }
    if (most := max(run.units["trainer"] * wide["trainer"], wide["engine"])) > here.gpus:
        raise ConfigError(f"the run is to compute on {most} GPUs of this machine, and there are {here.gpus}")
    roles = {role: replace(resources, gpus=0) for role, resources in run.roles.items()}
    placed = place(nodes, replace(run, roles=roles, layout="disaggregated", colocated=None).wanted())
    return Assignment(tuple(_on_this_machine(each, wide.get(each.role, 0)) for each in placed.places))


def _on_this_machine(unit: Place, gpus: int) -> Place:
    """A unit with its GPUs: a rank of the trainer has its own, every engine the first ones."""
    first = unit.number * gpus if unit.role == "trainer" else 0
    return replace(unit, devices=tuple(range(first, first + gpus)))


def engine_of(shape: Shape, ranks: int, width: int, devices: Sequence[Devices], trainer: TrainerMemory) -> EngineMemory:
    """An engine rank's memory, on the device that has least room for one."""
    alone = engine_memory(shape, ranks, width, 0.0)
    caches = [each.cache(trainer, alone) for each in devices if each.engines and each.room]
    return replace(alone, cache=min(caches, default=0.0))


def host_memory() -> float:
    """Bytes of this machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def engines_of(fleet: FleetConfig) -> int:
    """Return the number of engines of a run."""
    return len(fleet.urls) or fleet.engines


def work_of(shape: RolloutConfig, engine: EngineConfig, algo: AlgoConfig) -> StepWork:
    """A step's work, with sessions of half of their limit, and one up to it."""
    half = max(int(shape.session_tokens * USED / 2), 1)
    forwards = bool(algo.kl_coef) + (algo.correction.proximal == "recomputed")
    sessions = shape.groups_per_step * shape.group_size
    return StepWork(sessions, half, half, engine.max_batch, max(shape.session_tokens - half, 1), forwards)


def _at_once(shape: RolloutConfig, engine: EngineConfig, fleet: FleetConfig) -> int:
    """Return the number of sessions that each engine has at once."""
    sessions = shape.groups_per_step * shape.group_size
    return min(engine.max_batch, -(-sessions // max(engines_of(fleet), 1)))


def published_bytes(engine: EngineConfig, shape: Shape, numbers: Numbers) -> float:
    """Return the bytes that a publication brings to an engine: an adapter's alone where it takes them."""
    if numbers.adapter and "adapter" in ENGINES.find(engine.name).takes(engine):
        return FLOAT32 * numbers.adapter
    return shape.parameters * width_of(engine)


def width_of(engine: EngineConfig) -> int:
    """Return the bytes of an engine's weight, and of a number in its cache."""
    return 4 if engine.dtype == "float32" else 2


def _where(
    assignment: Assignment, nodes: Sequence[ClusterNode], agent: str | None, machines: ClusterConfig
) -> Iterator[str]:
    own_gateway = agent and not machines.gateways
    gateway, apart = ", gateway" if own_gateway else "", bool(machines.environments)
    beside = ", beside it the process that holds sessions" if machines.holds_sessions else ""
    yield f"{nodes[0].name}: the loop" + (beside if apart else f", sessions{gateway}")
    for node in nodes:
        for each in assignment.on(node.name):
            gpus = f" on GPUs {', '.join(map(str, each.devices))}" if each.devices else ""
            also = gateway if each.role == "environments" else ", colocated" if each.colocated else ""
            yield f"{node.name}: {each.role} {each.number}{gpus}{also}"


def _memory(
    trainer: TrainerMemory, engine: EngineMemory, budget: int, sessions: int, session_tokens: int
) -> Iterator[str]:
    parts = (part.name for part in fields(trainer))
    each = ", ".join(
        f"{name.replace('_', ' ')} {size(getattr(trainer, name))}" for name in parts if getattr(trainer, name)
    )
    yield f"memory of a trainer rank: {size(trainer.total)} = {each} (forests of {budget} tokens)"
    if not sessions:  # they are read
        return
    cache = sessions * session_tokens * engine.token
    yield (
        f"memory of an engine rank: weights {size(engine.weights)}, key-value cache {size(cache)} for {sessions} "
        f"sessions of {session_tokens} tokens ({size(engine.token)} a token)"
    )


def _on_device(devices: Devices, trainer: TrainerMemory, engine: EngineMemory) -> str:
    each = "each " if len(devices.numbers) > 1 else ""
    parts = []
    if devices.trainers:
        parts.append(f"{devices.trainers} x trainer, {size(devices.trainers * trainer.total)}")
    if devices.engines:
        turns = ", which sleep while it computes" if devices.sleeping else ""
        parts.append(f"{devices.engines} x engine, {size(devices.engines * engine.weights)} and their cache{turns}")
    if devices.models:
        parts.append(f"other models, {size(devices.models)}")
    room = f"of {size(devices.room)}" if devices.room else "the size of its memory is not known here"
    return f"{each}{'; '.join(parts)}; {room}"


def _describe_flows(
    engines: int, moved: float, shape: Shape, split: Split, numbers: Numbers, work: StepWork, budget: int
) -> Iterator[str]:
    yield f"in a step, trainer -> {engines} engines: {size(moved)} of weights for each"
    if split.data > 1:
        own = shape.parameters / split.tensor / split.pipeline
        sent = exchanged_bytes(own, numbers, work, budget, split)
        yield f"in a step, between data-parallel ranks: {size(sent)} of gradients and weights for each"


def _warnings(
    assignment: Assignment, nodes: Sequence[ClusterNode], step: StepTime, by_role: Mapping[str, str], *, shared: bool
) -> Iterator[str]:
    idle = {node.name: assignment.idle(node) for node in nodes}
    for name, gpus in idle.items():
        if gpus:
            yield f"GPUs {', '.join(map(str, gpus))} of {name} are idle"
    placed = {each.role for each in assignment.places if not each.devices}
    if any(node.gpus for node in nodes):
        for role, device in by_role.items():
            if role in placed and device == "auto":
                yield f"{role}.device=auto takes no GPU of its node for itself here; {role}.device=cuda does"
    if step.publish > 0.2 * step.total:
        yield f"weights take {step.publish / step.total:.0%} of a step: the link to the engines is the bottleneck"
    if step.overlaps and not shared and step.generate > 2 * step.train:
        yield "the trainer waits more than half of each step"
    if step.overlaps and step.train > 2 * step.alone:
        yield "the engines wait more than half of each step"

"""A run before its first step: trainer and engine start, and what was learned before is learned again.

A trainer that dies meanwhile is started anew, as one that dies later is (`train.driver.recovery`).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from agentrl.common import cores
from agentrl.config import RolloutConfig, RunConfig, TrainerConfig
from agentrl.envs.base import Env
from agentrl.envs.turns import Actor
from agentrl.rollout.episodes.actors import ModelActor
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.past import PastVersions
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.fleet import divided, wait_until_started
from agentrl.rollout.fleet.reference import ReferenceEngine
from agentrl.rollout.rerun.rollouts import RerunRollouts, RerunStream
from agentrl.rollout.stream.buffer import Gate
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import TaskStream, training_tasks
from agentrl.rollout.workers.environment_workers import InWorkers
from agentrl.sessions.renderers import strip
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver import recorded_steps, setup, warmstart
from agentrl.train.driver.colocated import leave
from agentrl.train.driver.engine_check import compare_engine, probe_bound
from agentrl.train.driver.learning import Learner, Learning
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.lost_tokens import top_scores
from agentrl.train.driver.probe import InTraining
from agentrl.train.driver.recovery import Recovery
from agentrl.train.driver.resuming import step_of
from agentrl.train.driver.session_worker import DistantLearning
from agentrl.train.plan.model_checks import compare_loaded, engine_settings
from agentrl.train.plan.room import context
from agentrl.train.record import provenance, recording
from agentrl.train.record.publication import NEVER
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.state import LearnedPolicy, RunState
from agentrl.train.trainers import Trainer
from agentrl.train.trainers.loaded import Loaded
from agentrl.train.trainers.teachers.teachers import Teachers
from agentrl.train.trainers.worker import place_trainer
from agentrl.types import MAIN


def make_loop(
    config: RunConfig,
    base: Path,
    policy: Policy,
    stream: Stream,
    learner: Learner,
    folder: RunFolder,
    store: Store,
    display: Display,
) -> tuple[Loop, Loaded | None]:
    """A loop over groups of any source, with a trainer that has been started, and how that compares with the folder.

    Args:
        config: the run's.
        base: the model's folder.
        policy: renderer and engine; without an engine nothing is published.
        stream: the groups.
        learner: learns from them.
        folder: the run's.
        store: its sessions.
        display: where progress is shown.
    """

    def starts(trainer: TrainerConfig) -> Callable[..., Trainer]:
        more = {"total_steps": config.learning_steps(MAIN), "seed": config.seed, "lora": config.lora}
        return partial(place_trainer, config.cluster, base, trainer, config.algo, **more)

    start_trainer = starts(config.trainer)

    def start() -> tuple[Trainer, Loaded | None]:
        with display.part("starting the trainer"):
            made = start_trainer(prove=None if config.model.name == setup.TINY else config.model.name)
        return made, compare_loaded(config, base, made, display)

    algorithm = make_algorithm(config.algo)
    recovery = Recovery(start_trainer, config.trainer.max_restarts, algorithm.snapshot(), starts=starts)
    trainer, loaded = recovery.first(start, display.warn)
    state = RunState({policy.name: LearnedPolicy(trainer, algorithm)}, stream, store)
    if config.lora.adapter is not None:  # engines start with the base alone
        state.main.published.sent = NEVER
    return Loop(config, policy, state, folder, display, learner, recovery=recovery), loaded


def make_generating_loop(
    config: RunConfig,
    make_env: Callable[[], Env],
    base: Path,
    rollouts: Rollouts,
    act: Callable[[RolloutConfig], Actor | Program],
    folder: RunFolder,
    store: Store,
    display: Display,
) -> tuple[Loop, Loaded | None]:
    """The loop of a run whose groups are generated; see `make_loop`."""
    stream = make_stream(config, rollouts, make_env, act(config.rollout))
    learner = make_learner(config, rollouts, folder, display)
    loop, loaded = make_loop(config, base, rollouts.policy, stream, learner, folder, store, display)
    if line := _threads(config, base, loop.trainer):
        display.say(line)
    past = (partner for partner in rollouts.partners.values() if isinstance(partner, PastVersions))
    loop.past = list({each.name: each for each in past}.values())
    loop.probe_bound = probe_bound(config, loaded)
    if config.learned:
        add_policies(loop, rollouts)
    loop.top_scores = top_scores(rollouts.make_env())
    if config.weights.prove_every:
        loop.reference = ReferenceEngine(engine_settings(config), config.fleet, config.weights, base)
    return loop, loaded


def add_policies(loop: Loop, rollouts: Rollouts) -> None:
    """Start the trainers of the policies that learn beside the main one, each on the model that it plays with."""
    config, folder, display = loop.config, loop.folder, loop.display
    players = {policy.name: policy for partner in rollouts.partners.values() for policy in partner.policies}
    others, learned = dict[str, InTraining](), dict[str, LearnedPolicy]()
    for name in config.learned:
        own, policy = config.of_policy(name), players[name]
        assert policy.model is not None
        with display.part(f"starting the trainer of {name}"):
            more = {"total_steps": config.learning_steps(name), "seed": config.seed, "lora": own.lora, "prove": None}
            trainer = place_trainer(own.cluster, policy.model, own.trainer, own.algo, **more)
        learner = Learning(own, folder.path, policy.engine, display.part, Teachers(own, folder.path))
        others[name] = InTraining(own, policy, learner)
        learned[name] = LearnedPolicy(trainer, make_algorithm(own.algo), evidence=provenance.Evidence(policy=name))
    loop.others = others
    loop.state = replace(loop.state, learned={**loop.state.learned, **learned})
    if loop.recovery is not None and loop.recovery.max_restarts:
        loop.recovery.max_restarts = 0
        display.say("several policies learn: a trainer that dies ends the run, which is resumed")


async def prepare_reading(loop: Loop) -> int:
    """Restore the checkpoint, or save the one that training begins from, of a run that reads its groups.

    Returns:
        The steps that are done.
    """
    config, folder, display = loop.config, loop.folder, loop.display
    if not folder.checkpoint:
        folder.restore()
        recording.write_start(config, folder, loop.trainer, display, 0)
        await loop.recovering(0, partial(loop.save, 0))
        return 0
    await loop.recovering(step_of(folder.checkpoint), loop.restore_trainers)
    start = await recorded_steps.resume(loop, config)
    folder.restore(start)
    recording.write_start(config, folder, loop.trainer, display, start)
    display.say(f"resuming {folder.path} after step {start}")
    return start


async def prepare(
    loop: Loop, rollouts: Rollouts, make_env: Callable[[], Env], base: Path, loaded: Loaded | None
) -> int:
    """Restore the checkpoint or imitate the expert, and publish to engines that have started.

    Args:
        loop: the run's.
        rollouts: generate demonstrations.
        make_env: makes the run's environment, without rewards of others.
        base: the model's folder.
        loaded: how the trainer's weights compare with the folder's.

    Returns:
        The steps that are done.
    """
    config, folder, display = loop.config, loop.folder, loop.display
    start = 0
    if folder.checkpoint:
        await loop.recovering(step_of(folder.checkpoint), loop.restore_trainers)
    else:
        folder.restore()
        recording.write_start(config, folder, loop.trainer, display, start)
        await _imitate(config, rollouts, make_env, base, loop)
    await leave(loop.trainer, rollouts.engines[0])
    with display.part("starting the engine"):
        await asyncio.gather(*map(wait_until_started, rollouts.engines))
    if folder.checkpoint:
        start = await recorded_steps.resume(loop, config)
        folder.restore(start)
        recording.write_start(config, folder, loop.trainer, display, start)
        display.say(f"resuming {folder.path} after step {start}")
    for name, policy in loop.state.learned.items():
        policy.evidence.known.update(provenance.read_published(folder.path, name))
    await loop.recovering(start, loop.publish)
    loop.write_published(start)

    async def compare() -> str | None:
        with display.part("comparing the engine with the trainer"):
            return await compare_engine(rollouts.engines[0], loop.trainer, config, base, loaded)

    if config.model.name != setup.TINY and (line := await loop.recovering(start, compare)):
        display.say(line)
    if config.model.reasoning == "strip":
        display.say(strip.PRICE)
    for past in loop.past:
        await loop.recovering(start, partial(_begin_past, loop, past, start))
    return start


async def _begin_past(loop: Loop, past: PastVersions, start: int) -> None:
    await past.begin(start, loop.state.learned[past.config.of].trainer.export)
    if start == 0:
        await asyncio.to_thread(loop.folder.seal_version, 0, past.path(0))


def make_learner(config: RunConfig, rollouts: Rollouts, folder: RunFolder, display: Display) -> Learner:
    """Return the learner from the run's groups, where their sessions are."""
    engine, elsewhere = rollouts.policy.engine, rollouts.elsewhere
    assert engine is not None
    if isinstance(elsewhere, InWorkers) and elsewhere.holding is not None:
        return DistantLearning(config, folder.path, elsewhere.holding.workers, engine, display.part)
    return Learning(config, folder.path, engine, display.part, Teachers(config, folder.path))


def make_stream(config: RunConfig, rollouts: Rollouts, make_env: Callable[[], Env], actor: Actor | Program) -> Stream:
    """The groups that a run trains on."""
    shape = config.rollout
    tasks = training_tasks(make_env(), "train", config.seed, shape.sampler)
    gate = Gate(shape.groups_per_step, config.steps, shape.staleness, shape.oversample)
    greedy = actor.greedy() if make_algorithm(config.algo).needs.greedy and isinstance(actor, ModelActor) else None
    if isinstance(rollouts, RerunRollouts):
        return RerunStream(rollouts, tasks, actor, group_size=shape.group_size, gate=gate, greedy=greedy)
    size, order = shape.group_size, shape.order
    return Stream(rollouts, tasks, actor, group_size=size, gate=gate, order=order, greedy=greedy)


def _threads(config: RunConfig, base: Path, trainer: Trainer) -> str | None:
    """The CPU threads of engines and trainer, as a line."""
    engines = divided(config.engine, config.fleet, base)
    several = f" ({len(engines)} of them)" if len(engines) > 1 else ""
    return cores.described(
        {f"engine={config.engine.name}{several}": engines[0].threads, f"trainer={config.trainer.name}": trainer.threads}
    )


def _stays_here(config: RunConfig) -> bool:
    """Return whether all that reads the run's folder is on this machine, and reads it where it is."""
    return config.cluster.name == "local" and config.checkpoint_url is None


async def _imitate(config: RunConfig, rollouts: Rollouts, make_env: Callable[[], Env], base: Path, loop: Loop) -> None:
    """The warm start, where there is one, and the checkpoint that reinforcement learning begins from."""
    warm, saved = config.warm_start, loop.folder.warm_start
    places = {name: saved.with_name(f"{saved.name}-{name}") for name in loop.others} | {loop.policy.name: saved}
    if warm.steps:
        env = make_env()
        tasks = TaskStream(env, setup.demonstration_split(env), config.seed)
        own = replace(rollouts, make_env=make_env)  # what is imitated needs no reward of another's
        played = await warmstart.demonstrations(own, tasks, warm.demos, loop.display)
        demos = warmstart.fitting(played, context(config, config.rollout, base), config.rollout, loop.display)

        async def imitate() -> None:
            budget = config.trainer.token_budget
            every, began = config.checkpoint_every, time.time()
            warmstart.note_times(loop.folder.path, began, None)
            for name, each in loop.in_training.items():
                trainer, place, whole = loop.state.learned[name].trainer, places[name], each.config.lora.active
                await warmstart.warm_start(
                    trainer, demos, warm, budget, config.seed, loop.display, place, every, whole=whole
                )
                if whole and hasattr(trainer, "set_base") and _stays_here(config):
                    kept = place.with_name(f"base{place.name.removeprefix(saved.name)}")
                    await asyncio.to_thread(warmstart.keep_base, trainer, kept)
                trainer.begin(each.config.algo, config.learning_steps(name))
            warmstart.note_times(loop.folder.path, began, time.time())

        loop.folder.seals.add(0, sessions=await loop.learner.digests(phase="demo"))
        await loop.recovering(0, imitate)
        assert loop.recovery is not None
        loop.recovery.imitate = imitate
    await loop.recovering(0, partial(loop.save, 0))
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)

"""A run before its first step: trainer and engine start, and what was learned before is learned again.

A trainer that dies meanwhile is started anew, as one that dies later is (`train.driver.recovery`).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from agentrl.common import cores
from agentrl.config import START, Policies, RolloutConfig, TrainerConfig
from agentrl.config.learners import named_as_given
from agentrl.envs.base import Env
from agentrl.envs.turns import Actor
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.past import PastVersions
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.fleet import count_beside, divide_cores, wait_until_started
from agentrl.rollout.fleet.reference import ReferenceEngine
from agentrl.rollout.rerun.rollouts import RerunRollouts, RerunStream
from agentrl.rollout.stream.buffer import Gate
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import TaskStream, training_tasks
from agentrl.rollout.workers.environment_workers import InWorkers
from agentrl.sessions.renderers import strip
from agentrl.train.algorithms import Algorithm
from agentrl.train.driver import base_model, recorded_steps, setup, warmstart
from agentrl.train.driver.engine_check import compare_engine, probe_bound
from agentrl.train.driver.learning import Learner, Learning, leave
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.lost_tokens import top_scores
from agentrl.train.driver.opening import OpenRun
from agentrl.train.driver.probe import InTraining
from agentrl.train.driver.recovery import Recovery
from agentrl.train.driver.resuming import ResumedFrom, step_of
from agentrl.train.driver.session_worker import DistantLearning
from agentrl.train.plan.model_checks import compare_loaded, engine_settings, require_recording, require_supports
from agentrl.train.plan.room import context
from agentrl.train.record import provenance, recording
from agentrl.train.record.state import NEVER, LearnedPolicy, RunState
from agentrl.train.trainers import BaseSharing, Trainer
from agentrl.train.trainers.loaded import Loaded
from agentrl.train.trainers.worker import place_trainer
from agentrl.types import MAIN

Act = Callable[[RolloutConfig], Actor | Program]
"""A function from limits to what acts within them: the model, or a program."""


def make_loop(run: OpenRun, base: Path, policy: Policy, stream: Stream, learner: Learner) -> tuple[Loop, Loaded | None]:
    """A loop over groups of any source, with a trainer that has been started, and how that compares with the folder.

    `base` is the model's folder. A policy without an engine is never published.
    """
    config, display = run.config, run.display

    def starts(trainer: TrainerConfig) -> Callable[..., Trainer]:
        more = {"total_steps": config.learning_steps(MAIN), "seed": config.seed, "lora": config.lora}
        return partial(place_trainer, config.cluster, base, trainer, config.algo, **more)

    start_trainer = starts(config.trainer)

    def start() -> tuple[Trainer, Loaded | None]:
        with display.part("starting the trainer"):
            made = start_trainer(prove=None if config.model.name == setup.TINY else config.model.name)
        return made, compare_loaded(config.learners[MAIN], run.algorithm, base, made, display)

    algorithm = run.algorithm
    recovery = Recovery(start_trainer, config.trainer.max_restarts, algorithm.snapshot(), starts=starts)
    trainer, loaded = recovery.first(start, display.warn)
    state = RunState({policy.name: LearnedPolicy(trainer, algorithm)}, stream, run.store)
    if config.lora.adapter is not None:  # engines start with the base alone
        state.main.published.sent = NEVER
    return Loop(policy, state, run.folder, display, learner, recovery), loaded


def open_trainers(
    run: OpenRun, training: AsyncExitStack, base: Path, make_env: Callable[[], Env], rollouts: Rollouts, act: Act
) -> tuple[Loop, Loaded | None]:
    """The loop of a run whose groups are generated, which `training` closes; see `make_loop`."""
    config = run.config
    stream = make_stream(rollouts, make_env, act(config.rollout), run.algorithm, config.steps)
    loop, loaded = make_loop(run, base, rollouts.policy, stream, make_learner(run, rollouts))
    training.push_async_callback(loop.close)
    engines = divide_cores(config.engine, config.fleet, base, count_beside(MAIN, config.fleets))
    several = f" ({len(engines)} of them)" if len(engines) > 1 else ""
    threads = {
        f"engine={config.engine.name}{several}": engines[0].threads,
        f"trainer={config.trainer.name}": loop.trainer.threads,
    }
    if line := cores.describe_threads(threads):
        run.display.say(line)
    past = (partner for partner in rollouts.partners.values() if isinstance(partner, PastVersions))
    loop.past = list({each.name: each for each in past}.values())
    loop.probe_bound = probe_bound(config.weights, config.trainer, config.engine, loaded)
    add_policies(loop, rollouts, run.algorithms)
    loop.top_scores = top_scores(rollouts.make_env())
    if config.weights.prove_every:
        settings = engine_settings(config.learners[MAIN], config.rollout, config.cluster)
        loop.reference = ReferenceEngine(settings, config.fleet, config.weights, base)
    return loop, loaded


def add_policies(loop: Loop, rollouts: Rollouts, algorithms: Mapping[str, Algorithm]) -> None:
    """Start the trainers of the policies that learn beside the main one, each on the model that it plays with."""
    config, folder, display = loop.config, loop.folder, loop.display
    players = {policy.name: policy for partner in rollouts.partners.values() for policy in partner.policies}
    for name in config.learned:
        own, policy = config.learners[name], players[name]
        with display.part(f"starting the trainer of {name}"):
            more = {"total_steps": config.learning_steps(name), "seed": config.seed, "lora": own.lora, "prove": None}
            with named_as_given(config.policies, name):
                require_recording(own.trainer, own.engine, policy.require_engine())
                trainer = place_trainer(config.cluster, policy.require_model(), own.trainer, own.algo, **more)
        learned = LearnedPolicy(trainer, algorithms[name], evidence=provenance.Evidence(policy=name))
        if own.lora.adapter is not None:  # engines start with the base alone
            learned.published.sent = NEVER
        loop.state = replace(loop.state, learned={**loop.state.learned, name: learned})
        learner = Learning.of(config.learning(name), folder.path, policy.engine, display.part)
        bound = probe_bound(own.weights, own.trainer, own.engine, None)
        loop.others = {**loop.others, name: InTraining(own, policy, learner, bound)}
        if own.lora.active:
            _share_base(trainer, loop, name)
    if config.learned and loop.recovery.max_restarts:
        loop.recovery.max_restarts = 0
        display.say("several policies learn: a trainer that dies ends the run, which is resumed")


def _share_base(trainer: Trainer, loop: Loop, name: str) -> None:
    """Have a policy's trainer compute with the base of the main one's, where it is the same."""
    if isinstance(trainer, BaseSharing) and trainer.share_base(loop.trainer):
        if loop.config.lora.tenants == "mixed":
            trainer.prove_mixing()
        return
    own = (
        f"{name} has a base of its own: another model, device or precision than {MAIN}'s, or trainers that can't share"
    )
    if loop.config.lora.tenants == "mixed":
        raise ConfigError(f"lora.tenants=mixed: {own}; use lora.tenants=separate")
    loop.display.say(own)


async def prepare_reading(loop: Loop) -> int:
    """Restore the checkpoint, or save the one that training begins from, of a run that reads its groups.

    Returns:
        The steps that are done.
    """
    if (resumed := loop.folder.resumed) is None:
        loop.folder.restore()
        recording.write_start(loop.folder, loop.trainer, loop.display, 0)
        await loop.recovering(0, partial(loop.save, 0))
        return 0
    await loop.recovering(step_of(resumed.checkpoint), partial(loop.restore_trainers, resumed.checkpoint))
    return await _go_on(loop, resumed)


async def _go_on(loop: Loop, resumed: ResumedFrom) -> int:
    """Bring the run to the last step that is recorded, and return it."""
    start = await recorded_steps.resume(loop, resumed)
    loop.folder.restore(start)
    recording.write_start(loop.folder, loop.trainer, loop.display, start)
    loop.display.say(f"resuming {loop.folder.path} after step {start}")
    return start


async def prepare(
    loop: Loop, rollouts: Rollouts, make_env: Callable[[], Env], base: Path, loaded: Loaded | None
) -> int:
    """Restore the checkpoint or imitate the expert, and publish to engines that have started.

    `make_env` makes the run's environment without rewards of others; `loaded` says how the trainer's weights compare
    with those of the folder `base`.

    Returns:
        The steps that are done.
    """
    config, folder, display = loop.config, loop.folder, loop.display
    start = 0
    if (resumed := folder.resumed) is not None:
        await loop.recovering(step_of(resumed.checkpoint), partial(loop.restore_trainers, resumed.checkpoint))
    else:
        folder.restore()
        recording.write_start(folder, loop.trainer, display, start)
        await _imitate(loop, rollouts, make_env, base)
    await leave(loop.trainer, rollouts.engines[0])
    with display.part("starting the engine"):
        await asyncio.gather(*(_start_engine(config.policies, name, each) for name, each in rollouts.policies.items()))
    for name, each in loop.in_training.items() if not config.allow_no_signal else ():
        with named_as_given(config.policies, name):
            require_supports(config.rollout, each.policy.require_engine())
    if resumed is not None:
        start = await _go_on(loop, resumed)
    for name, policy in loop.state.learned.items():
        policy.evidence.known.update(provenance.read_published(folder.path, name))
    await loop.recovering(start, loop.publish)
    loop.write_published(start)

    for name in loop.in_training:
        await loop.recovering(start, partial(_compare, loop, name, loaded if name == MAIN else None))
    if config.model.reasoning == "strip":
        display.say(strip.PRICE)
    for past in loop.past:
        await loop.recovering(start, partial(_begin_past, loop, past, start))
    return start


async def _start_engine(policies: Policies, name: str, policy: Policy) -> None:
    with named_as_given(policies, name.partition("/")[0]):
        await wait_until_started(policy.engine)


async def _compare(loop: Loop, name: str, loaded: Loaded | None) -> None:
    """Compare a policy's engine with its trainer on a long prompt, and say what came of it."""
    each, config = loop.in_training[name], loop.config
    engine, folder, model = each.policy.engine, each.policy.model, each.config.model.name
    if engine is None or folder is None or (config.model.name if model == START else model) == setup.TINY:
        return
    with loop.display.part("comparing the engine with the trainer"):
        trainer = loop.state.learned[name].trainer
        line = await compare_engine(engine, trainer, each.config, folder, loaded)
    if line:
        loop.display.say(line if name == MAIN else f"{name}: {line}")


async def _begin_past(loop: Loop, past: PastVersions, start: int) -> None:
    await past.begin(start, loop.state.learned[past.config.of].trainer.export)
    if start == 0:
        await asyncio.to_thread(loop.folder.seal_version, 0, past.path(0))


def make_learner(run: OpenRun, rollouts: Rollouts) -> Learner:
    """Return the learner from the run's groups, where their sessions are."""
    config, folder, part = run.config.learning(MAIN), run.folder.path, run.display.part
    engine, elsewhere = rollouts.engines[0], rollouts.elsewhere
    if isinstance(elsewhere, InWorkers) and elsewhere.holding is not None:
        return DistantLearning(config, folder, elsewhere.holding.workers, engine, part)
    return Learning.of(config, folder, engine, part)


def make_stream(
    rollouts: Rollouts, make_env: Callable[[], Env], actor: Actor | Program, algorithm: Algorithm, steps: int
) -> Stream:
    """The groups that a run trains on."""
    shape = rollouts.limits
    tasks = training_tasks(make_env(), "train", rollouts.seed, shape.sampler)
    gate = Gate(shape.groups_per_step, steps, shape.staleness, shape.oversample)
    greedy = actor.greedy() if algorithm.needs.greedy and isinstance(actor, ModelActor) else None
    if isinstance(rollouts, RerunRollouts):
        return RerunStream(rollouts, tasks, actor, group_size=shape.group_size, gate=gate, greedy=greedy)
    size, order = shape.group_size, shape.order
    return Stream(rollouts, tasks, actor, group_size=size, gate=gate, order=order, greedy=greedy)


async def _imitate(loop: Loop, rollouts: Rollouts, make_env: Callable[[], Env], base: Path) -> None:
    """The warm start, where there is one, and the checkpoint that reinforcement learning begins from."""
    config = loop.config
    warm, saved, limits = config.warm_start, loop.folder.warm_start, config.rollout
    # whether all that reads the run's folder is on this machine, and reads it where it is
    stays_here = config.cluster.name == "local" and config.checkpoint_url is None
    places = {name: saved.with_name(f"{saved.name}-{name}") for name in loop.others} | {loop.policy.name: saved}
    if warm.steps:
        env = make_env()
        tasks = TaskStream(env, base_model.demonstration_split(env), config.seed)
        own = replace(rollouts, make_env=make_env)  # what is imitated needs no reward of another's
        played = await warmstart.demonstrations(own, tasks, warm.demos, loop.display)
        known = context(config.engine, config.model.name, limits, base)
        demos = warmstart.fitting(played, known, limits, loop.display)

        async def imitate() -> None:
            budget = config.trainer.token_budget
            every, began = config.checkpoint_every, time.time()
            warmstart.note_times(loop.folder.path, began, None)
            for name, each in loop.in_training.items():
                trainer, place, whole = loop.state.learned[name].trainer, places[name], each.config.lora.active
                if isinstance(trainer, BaseSharing) and trainer.shared_base:  # the main policy's imitation trained it
                    trainer.follow_base(warmstart.settings(warm), warm.steps)
                    if stays_here:
                        trainer.set_base(saved.with_name("base"))
                else:
                    await warmstart.warm_start(
                        *(trainer, demos, warm, budget, config.seed, loop.display, place, every),
                        whole=whole,
                        policy=name,
                    )
                    if whole and hasattr(trainer, "set_base") and stays_here:
                        kept = place.with_name(f"base{place.name.removeprefix(saved.name)}")
                        await asyncio.to_thread(warmstart.keep_base, trainer, kept)
                trainer.begin(each.config.algo, config.learning_steps(name))
            warmstart.note_times(loop.folder.path, began, time.time())

        loop.folder.seals.add(0, sessions=await loop.learner.digests(phase="demo"))
        await loop.recovering(0, imitate)
        loop.recovery.imitate = imitate
    await loop.recovering(0, partial(loop.save, 0))
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)

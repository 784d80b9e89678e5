"""A whole run, from its configuration to its last checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import orjson

from agentrl import cluster
from agentrl.common import garbage
from agentrl.config import ClusterConfig, EvalConfig, PolicyConfig, RunConfig
from agentrl.config.learners import LearnerConfig, named_as_given
from agentrl.config.secrets import public
from agentrl.envs import sandboxes
from agentrl.envs.added_tools import with_tools
from agentrl.envs.base import Env
from agentrl.envs.data import identity
from agentrl.envs.data.identity import Identities
from agentrl.envs.registry import factory
from agentrl.errors import AgentError, ConfigError
from agentrl.overrides import validate
from agentrl.rollout.episodes.evaluation import held_out_split, held_out_tasks, play_held_out
from agentrl.rollout.episodes.groups import DEMO, Rollouts
from agentrl.rollout.episodes.judges import serve_judges
from agentrl.rollout.episodes.opponents import open_partners
from agentrl.rollout.episodes.policies import ModelActor, Policy, averaged_policy, sampling_of
from agentrl.rollout.episodes.programs import Program, serving
from agentrl.rollout.fleet import count_beside, elastic, make_engines, require_attached, wait_until_started
from agentrl.rollout.rerun.engine import Recording, RerunEngine
from agentrl.rollout.rerun.rollouts import RerunRollouts
from agentrl.rollout.stream.batch_metrics import Evaluation, evaluate_groups
from agentrl.rollout.workers.environment_workers import in_workers
from agentrl.rollout.workers.gateway_workers import distant_program, gateway_workers
from agentrl.rollout.workers.held import read_heads
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.sessions.renderers import get_renderer, strip
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Algorithm
from agentrl.train.display.console import Display
from agentrl.train.display.next_try import next_try
from agentrl.train.display.pictures import learning_curve, transcripts
from agentrl.train.driver import base_model, setup
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.opening import OpenRun, open_run, stoppable
from agentrl.train.driver.preparation import Act, open_trainers, prepare
from agentrl.train.driver.result import TrainResult
from agentrl.train.driver.session_worker import holding
from agentrl.train.evaluation.probe import HeldOutProbe
from agentrl.train.offline.run import train_on_data
from agentrl.train.plan import model_checks
from agentrl.train.plan.placing import reserve
from agentrl.train.plan.room import check_room, split_budgets
from agentrl.train.record import data_identity, recording
from agentrl.train.record.best import describe_best
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.state import groups_of
from agentrl.train.trainers.teachers.teachers import check_teachers
from agentrl.types import MAIN, Engine

Weighed = TypeVar("Weighed", LearnerConfig, PolicyConfig)
Measure = Callable[[str, int], Awaitable[Evaluation]]
"""Evaluates a run on held-out tasks, by when that is, in words, and how many steps are done."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy whose engines are started or about to be, its model's folder, and what a rerun repeats."""

    policy: Policy
    base: Path
    recorded: Recording | None = None


async def train_run(config: RunConfig, display: Display, algorithms: Mapping[str, Algorithm]) -> TrainResult:
    """Train as the configuration says: the stages of a run's life, in their order.

    The run owns what its stages open, and closes it in reverse order, also where a later stage fails. A resumed run
    continues at its checkpoint's step. `algorithms`: those of the policies that learn, by name (`check_training`).
    """
    setup.quiet()
    if config.data is not None:
        async with open_run(config, display, algorithms) as run:
            return await train_on_data(run, config.data)
    sandboxes.configure(config.sandbox)
    plain = factory(config.env.name, **config.env.kwargs)
    env = plain()
    data = identity.of_splits(env, base_model.data_splits(env, config.eval, imitates=config.warm_start.steps > 0))
    told = data_identity.check_same(config.resume, config.rerun, env, data, accept_changed=config.accept_changed_data)
    async with open_run(config, display, algorithms) as run:
        run.folder.data = data
        for line in (identity.describe_identity(data), *told):
            display.say(line)
        make_env = await run.opened.enter_async_context(with_tools(plain, config.tools))
        base = await run.load_model(partial(base_model.build_tiny, make_env))
        await check_teachers(config.teachers, config.learners[MAIN], config.rollout, run.algorithm, base)
        played, splits = [(config, make_env)], ("train", held_out_split(config.eval, make_env()))
        policy = await load_policy(run.opened, played, base, run.folder.path, splits, display.say, publishes=True)
        rollouts, act = await open_rollouts(run.opened, policy, config, make_env, run.store, trains=True)
        await _check_engines(run, rollouts, base)
        async with AsyncExitStack() as training:  # closed before the result is told: its checkpoints are whole then
            loop, loaded = open_trainers(run, training, base, make_env, rollouts, act)
            with garbage.collect_less_often(config.rollout.concurrency):
                start = await prepare(loop, rollouts, make_env, base, loaded)
                measure = await open_measure(training, loop, rollouts, act)
                before, after, done = await _reinforce(run, loop, measure, start)
        return _conclude(run, loop, before, after, done)


async def load_policy(
    opened: AsyncExitStack,
    played: Sequence[tuple[RunConfig, Callable[[], Env]]],
    base: Path,
    folder: Path,
    splits: Sequence[str] = (),
    say: Callable[[str], object] = lambda line: None,
    *,
    publishes: bool = False,
) -> LoadedPolicy:
    """Load the policy of a configuration, on its cluster; `opened` closes both.

    `played`: the environments that it is to play, each with its own limits; of these `splits`, or the one that is
    evaluated. `publishes`: its engines get new weights, through `folder` where they are on other machines. Logs go
    into `folder`.
    """
    config, _ = played[0]
    learners, machines = config.learners, config.cluster
    own = share_weights(learners[MAIN], machines, folder) if publishes else learners[MAIN]
    nodes = opened.enter_context(cluster.open_cluster(machines, folder / "logs"))
    averaged = config.eval.weights == "averaged"
    await asyncio.to_thread(reserve, nodes, machines, learners, config.policies, base, averaged=averaged)
    await opened.enter_async_context(cluster.while_not_lost(nodes.lost))
    # first, since a server loads while the renderer is proved
    apart = publishes and model_checks.is_driven_hard(config.rollout, config.steps, base)
    settings = model_checks.engine_settings(own, config.rollout, machines, apart=apart)
    engine: Engine = make_engines(settings, own.fleet, own.weights, base, count_beside(MAIN, config.fleets))
    opened.push_async_callback(engine.close)
    renderer = get_renderer(base, own.model.renderer, own.model.stop)
    for each, make_env in played:
        chosen = splits or (held_out_split(each.eval, make_env()),)
        budgets = partial(split_budgets, each.engine, each.model.name, base, each.rollout, each.eval)
        for line in await check_room(budgets, make_env, renderer, chosen, each.agents, each.agent, each.seed):
            say(line)
    model_checks.require_recording(own.trainer, own.engine, engine)
    recorded = None
    if config.rerun:
        answers = config.rerun_answers == "compare"
        recorded = recording.load(Path(config.rerun), engine, own.weights, answers=answers)
        engine = RerunEngine(engine, recorded)
    policy = Policy(renderer, engine, model=base, strip_reasoning=own.model.reasoning == "strip")
    await opened.enter_async_context(elastic(engine, settings, own.fleet, base))
    return LoadedPolicy(policy, base, recorded)


async def open_rollouts(
    opened: AsyncExitStack,
    loaded: LoadedPolicy,
    config: RunConfig,
    make_env: Callable[[], Env],
    store: Store,
    *,
    trains: bool = False,
) -> tuple[Rollouts, Act]:
    """A loaded policy's rollouts on one environment, and a function from limits to the model or program that acts.

    `opened` closes them. `trains`: finished sessions may be held by a process beside this one (`cluster.sessions`).
    """
    policy, folder, enter = loaded.policy, Path(store.path).parent, opened.enter_async_context
    served = await enter(serve_judges(config.rewards, config.policies, loaded.base))
    config = config.model_copy(update={"rewards": served})
    learners, limits, machines = config.learners, config.rollout, config.cluster
    main, policies = learners[MAIN], model_checks.suit_engines(learners, config.policies, limits, machines)
    if trains:
        main = share_weights(main, machines, folder)
        policies = {name: share_weights(each, machines, folder) for name, each in policies.items()}
    partners = await enter(open_partners(policies, config.agents, main, limits, config.seed, loaded.base, folder))
    make_env, scorers = await enter(open_reward_workers(make_env, config.rewards, machines, config.sandbox))
    holds = trains and machines.holds_sessions
    held = await enter(holding(config.learning(MAIN), machines, store)) if holds else None
    recorder, name, views = opened.enter_context(Recorder(store, {DEMO})), config.env.name, config.views
    rollouts = Rollouts(make_env, policy, limits, config.seed, partners, name, recorder, store.load, views=views)
    rollouts = replace(rollouts, counterfactuals=config.counterfactuals, combinations=config.combinations)
    if loaded.recorded is not None:
        rollouts = RerunRollouts.of(rollouts, loaded.recorded)
    gateways = await enter(gateway_workers(machines, config.gateway, config.model, rollouts, loaded.base))
    placed = await enter(in_workers(config, rollouts, loaded.base, scorers, gateways, held))
    if config.agent is None:
        return placed, lambda limits: ModelActor(sampling_of(limits))
    if machines.environments:
        program: Program = Program(config.agent)
    elif gateways is not None:
        program = distant_program(config.agent, config.gateway, gateways)
    else:
        program = await enter(serving(config.agent, policy, store, limits, config.gateway, config.agents, partners))
    return placed, lambda limits: program


def share_weights(own: Weighed, machines: ClusterConfig, folder: Path) -> Weighed:
    """Return a policy's settings, with new weights going through the run's folder where other machines read them."""
    weights = own.weights
    if weights is None or machines.name == "local" or getattr(weights, "dir", "") is not None:
        return own
    shared = weights.model_copy(update={"dir": str(folder.absolute() / "weights")})
    if isinstance(own, LearnerConfig):
        return replace(own, weights=shared)
    return own.model_copy(update={"weights": shared})


async def _check_engines(run: OpenRun, rollouts: Rollouts, base: Path) -> None:
    """Refuse engines that should run already and don't, and prove the trainer while others load."""
    config = run.config
    for name, policy in rollouts.policies.items():
        with named_as_given(config.policies, name.partition("/")[0]):  # past/3 is a version of `past`
            await require_attached(filter(None, [policy.engine]))
    if model_checks.loads_meanwhile(config.data, config.engine):
        model_checks.prove_trainer(config.trainer, base, config.model.name, config.engine.max_context, run.display)


async def open_measure(training: AsyncExitStack, loop: Loop, rollouts: Rollouts, act: Act) -> Measure:
    """Return the evaluation of a run on held-out tasks; `training` closes the engine of averaged weights."""
    config, folder, display = loop.config, loop.folder, loop.display
    limits, label = config.eval.limits(config.rollout), config.eval.label
    policy = rollouts.policy
    if config.eval.weights == "averaged":
        settings = model_checks.engine_settings(config.learners[MAIN], config.rollout, config.cluster)
        policy = await training.enter_async_context(averaged_policy(policy, settings))
        await wait_until_started(policy.engine)
    played = rollouts.limited(limits, apart=config.eval.concurrency is not None, policy=policy)
    who = act(limits)
    tasks = held_out_tasks(config.eval, rollouts.make_env())  # once: a file may change while the run goes on
    probe = HeldOutProbe(config, rollouts.make_env, folder.path, display.warn, display.say)

    async def measure(when: str, step: int) -> Evaluation:
        if policy.engine is not None and policy is not rollouts.policy:
            await loop.recovering(step, partial(loop.publish_average, policy.engine))
        folder.seals.add(step, evaluation="begun")
        name, about = when.removesuffix(" training"), f"evaluation {when}"
        result, groups = await play_held_out(config.eval, played, who, display, f"{about}{label}", step, tasks=tasks)
        file = folder.path / "transcripts" / f"{name.replace(' ', '-')}.md"
        transcripts(file, f"{config.env.name}, {when}", groups)
        display.say(f"{name}{label}: {result}")
        result = replace(result, metrics={**result.metrics, **await probe.look(groups, about, step)})
        found = await loop.learner.digests(phase="eval", step=step)
        folder.seals.add(step, evaluation="ended", sessions=found)
        return result

    return measure


async def _reinforce(
    run: OpenRun, loop: Loop, measure: Measure, start: int
) -> tuple[Evaluation | None, Evaluation, int]:
    """Measure, take the steps, and measure again; how many steps are done is the third."""
    config, display = run.config, run.display
    before = await measure("before training", 0) if not start else _measured_before(run, run.folder.data)
    if not start and before is not None and not before.metrics["sessions/turns_max"]:
        raise AgentError("before training, no session of the evaluation had a single turn: see the warning above")
    loop.measure = lambda step: measure(f"after step {step}", step)
    display.phase("reinforcement learning", config.steps, "reward", start)
    with stoppable(loop, display):
        done = await loop.run(start)
    return before, await measure("after training", done), done


def _measured_before(run: OpenRun, data: Identities) -> Evaluation | None:
    """The evaluation before the first step of a run that goes on with this data, to compare the next one with.

    None where its sessions are gone, or what is evaluated, how, or on which tasks changed since.
    """
    measured, groups = run.config.eval, list(groups_of(list(read_heads(run.store, phase="eval", step=0))))
    try:
        first = orjson.loads((run.folder.path / STARTS).read_bytes().splitlines()[0])
        then, same = first["settings"], not identity.differences(identity.read(first[identity.KEY]), data)
        same = same and validate(then["eval"], EvalConfig) == measured
        same = same and then["rewards"] == public(run.config)["rewards"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError):  # of an older agentrl
        return None
    return evaluate_groups(groups, measured) if same and any(group.scored for group in groups) else None


def _conclude(run: OpenRun, loop: Loop, before: Evaluation | None, after: Evaluation, done: int) -> TrainResult:
    """Show and draw what a run came to, what to try next where its reward did not rise, and return it."""
    config, folder, display, rows = run.config, run.folder, run.display, run.folder.metrics()
    if config.rerun:
        display.say(recording.compare_weights(Path(config.rerun), folder.path))
    if config.model.reasoning == "strip":
        display.say(strip.summarize_cost(rows))
    marks = {name: value.mean for name, value in (("before", before), ("after", after)) if value}
    title = f"{config.env.name} · {config.model.name} · {config.algo.name} · seed {config.seed}"
    learning_curve(folder.path / "learning_curve.png", rows, title, marks, evaluated=config.eval.label)
    if before is not None:
        settings = (config.steps, config.warm_start.steps, config.rollout.group_size)
        advice = next_try(folder.path, settings, before, after, rows, loop.top_scores)
        if advice and not config.rerun:
            display.say(advice)
        display.say(f"reward{config.eval.label} {before.summary} before training, {after.summary} after it")
    last = {"step": done, "eval/mean": after.mean, **{f"eval/{name}": value for name, value in after.metrics.items()}}
    for line in describe_best(folder.path, folder.checkpoints(), rows, config.keep_best, last):
        display.say(line)
    return TrainResult(folder.path, before, after, rows, worked=loop.health.worked or after.worked)

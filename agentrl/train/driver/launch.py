"""A whole run, from its configuration to its last checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agentrl import cluster
from agentrl.common import garbage
from agentrl.config import ClusterConfig, RolloutConfig, RunConfig, WeightsConfig
from agentrl.config.learners import named_as_given
from agentrl.envs import sandboxes
from agentrl.envs.added_tools import with_tools
from agentrl.envs.base import Env
from agentrl.envs.data import identity
from agentrl.envs.registry import factory
from agentrl.envs.turns import Actor
from agentrl.errors import AgentError
from agentrl.rollout.episodes.actors import ModelActor, sampling_of
from agentrl.rollout.episodes.evaluation import held_out_split, held_out_tasks, play_held_out
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.judges import serve_judges
from agentrl.rollout.episodes.opponents import open_partners
from agentrl.rollout.episodes.policies import Policy, averaged_policy
from agentrl.rollout.episodes.programs import Program, serving
from agentrl.rollout.fleet import count_beside, elastic, make_engines, require_attached, wait_until_started
from agentrl.rollout.rerun.engine import Recording, RerunEngine
from agentrl.rollout.rerun.rollouts import RerunRollouts
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.rollout.workers.environment_workers import in_workers
from agentrl.rollout.workers.gateway_workers import distant_program, gateway_workers
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.display.pictures import transcripts
from agentrl.train.driver import base_model, setup
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.opening import OpenRun, opened_run, stoppable
from agentrl.train.driver.preparation import make_generating_loop, prepare
from agentrl.train.driver.result import TrainResult, show
from agentrl.train.driver.session_worker import holding
from agentrl.train.evaluation.evaluated import before_training
from agentrl.train.evaluation.probe import HeldOutProbe
from agentrl.train.offline.run import train_on_data
from agentrl.train.plan.model_checks import engine_settings, require_recording, suit_engines
from agentrl.train.plan.placing import reserve
from agentrl.train.plan.room import check_room
from agentrl.train.record import data_identity, recording
from agentrl.train.record.best import describe_best
from agentrl.train.trainers.teachers.teachers import check_teachers
from agentrl.types import MAIN, Engine

SHOWN = 6
"""The most conversations of a transcript."""


async def train_run(config: RunConfig, display: Display) -> TrainResult:
    """Train as the configuration says.

    The phases: build or fetch the model; imitate the expert (where the recipe says so); measure; reinforce;
    measure again. A resumed run continues at its checkpoint's step.
    """
    setup.quiet()
    if config.data is not None:
        with opened_run(config, display) as run:
            return await train_on_data(run, config.data)
    sandboxes.configure(config.sandbox)
    make_env = factory(config.env.name, **config.env.kwargs)
    own = make_env()
    data = identity.of_splits(own, base_model.data_splits(own, config.eval, imitates=config.warm_start.steps > 0))
    told = data_identity.check_same(config.resume, config.rerun, own, data, accept_changed=config.accept_changed_data)
    with opened_run(config, display) as run:
        run.folder.data = data
        for line in (identity.describe_identity(data), *told):
            display.say(line)
        async with with_tools(make_env, config.tools) as equipped:
            return await _train(run, equipped)


async def _train(run: OpenRun, make_env: Callable[[], Env]) -> TrainResult:
    config, folder, display = run.config, run.folder, run.display
    base = await run.load_model(partial(base_model.build_tiny, make_env))
    await check_teachers(config.teachers, config.learners[MAIN], config.rollout, run.algorithm, base)
    splits = ("train", held_out_split(config.eval, make_env()))
    async with player(config, make_env, base, run.store, trains=True, splits=splits, say=display.say) as (
        rollouts,
        act,
    ):
        for name, policy in rollouts.policies.items():
            with named_as_given(config.policies, name.partition("/")[0]):  # past/3 is a version of `past`
                await require_attached(filter(None, [policy.engine]))
        loop, loaded = make_generating_loop(run, base, make_env, rollouts, act)
        try:
            start = await prepare(loop, rollouts, make_env, base, loaded)
            async with held_out(loop, rollouts, act) as measure:
                before = await measure("before training", 0) if not start else before_training(run, folder.data)
                if not start and before is not None and not before.metrics["sessions/turns_max"]:
                    raise AgentError(
                        "before training, no session of the evaluation had a single turn: see the warning above"
                    )
                loop.measure = lambda step: measure(f"after step {step}", step)
                display.phase("reinforcement learning", config.steps, "reward", start)
                with stoppable(loop, display), garbage.collect_less_often():
                    done = await loop.run(start)
                after = await measure("after training", done)
        finally:
            await loop.close()
    worked = loop.health.worked or after.worked
    result = TrainResult(folder.path, before, after, folder.metrics(), worked=worked)
    show(config, result, loop.top_scores, display)
    last = {"step": done, "eval/mean": after.mean, **{f"eval/{name}": value for name, value in after.metrics.items()}}
    for line in describe_best(folder.path, folder.checkpoints(), result.metrics, config.keep_best, last):
        display.say(line)
    return result


@asynccontextmanager
async def held_out(
    loop: Loop, rollouts: Rollouts, act: Callable[[RolloutConfig], Actor | Program]
) -> AsyncIterator[Callable[[str, int], Awaitable[Evaluation]]]:
    """Yield an evaluation of the run on held-out tasks: it takes when (in words), and how many steps are done."""
    config, folder, display = loop.config, loop.folder, loop.display
    limits, label = config.eval.limits(config.rollout), config.eval.label
    async with AsyncExitStack() as stack:
        policy = rollouts.policy
        if config.eval.weights == "averaged":
            settings = engine_settings(config.learners[MAIN], config.rollout, config.cluster)
            policy = await stack.enter_async_context(averaged_policy(policy, settings))
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
            result, groups = await play_held_out(
                config.eval, played, who, display, f"{about}{label}", step, tasks=tasks
            )
            shown = [session for group in groups[:SHOWN] for session in group.sessions[:1]]
            file = folder.path / "transcripts" / f"{name.replace(' ', '-')}.md"
            transcripts(file, f"{config.env.name}, {when}", shown)
            display.say(f"{name}{label}: {result}")
            result = replace(result, metrics={**result.metrics, **await probe.look(groups, about, step)})
            found = await loop.learner.digests(phase="eval", step=step)
            folder.seals.add(step, evaluation="ended", sessions=found)
            return result

        yield measure


@asynccontextmanager
async def player(
    config: RunConfig,
    make_env: Callable[[], Env],
    base: Path,
    store: Store,
    *,
    trains: bool = False,
    splits: Sequence[str] = (),
    say: Callable[[str], object] = lambda line: None,
) -> AsyncIterator[tuple[Rollouts, Callable[[RolloutConfig], Actor | Program]]]:
    """Rollouts on the run's cluster, and a function from limits to what acts in them: the model, or a program.

    `trains`: finished sessions may be held by a process beside this one (`cluster.sessions`). `splits`: those played.
    `say`: tells lines about them.
    """
    folder = Path(store.path).parent
    config = with_shared_weights(config, folder)
    async with (
        loaded(config, [(config, make_env)], base, folder, splits, say) as policy,
        playing(policy, config, make_env, store, trains=trains) as made,
    ):
        yield made


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy whose engines are started, or about to be.

    Attributes:
        policy: it.
        base: the folder of its model.
        recorded: what a rerun repeats; None elsewhere.
    """

    policy: Policy
    base: Path
    recorded: Recording | None = None


@asynccontextmanager
async def loaded(
    config: RunConfig,
    played: Sequence[tuple[RunConfig, Callable[[], Env]]],
    base: Path,
    folder: Path,
    splits: Sequence[str] = (),
    say: Callable[[str], object] = lambda line: None,
) -> AsyncIterator[LoadedPolicy]:
    """Load the policy of a configuration, on its cluster; its engines are closed in the end.

    `played`: the environments that it is to play, each with its own limits; of these `splits`, or the one that is
    evaluated. Logs go into `folder`.
    """
    with cluster.open_cluster(config.cluster, folder / "logs") as opened:
        await asyncio.to_thread(reserve, opened, config, base)
        async with cluster.while_not_lost(opened.lost):
            renderer = get_renderer(base, config.model.renderer, config.model.stop)
            for own, make_env in played:
                chosen = splits or (held_out_split(own.eval, make_env()),)
                for line in await check_room(own, make_env, renderer, base, chosen):
                    say(line)
            settings = engine_settings(config.learners[MAIN], config.rollout, config.cluster)
            beside = count_beside(MAIN, config.fleets)
            engine: Engine = make_engines(settings, config.fleet, config.weights, base, beside)
            try:
                require_recording(config.trainer, config.engine, engine)
                recorded = None
                if config.rerun:
                    answers = config.rerun_answers == "compare"
                    recorded = recording.load(Path(config.rerun), engine, config.weights, answers=answers)
                    engine = RerunEngine(engine, recorded)
                policy = Policy(renderer, engine, model=base, strip_reasoning=config.model.reasoning == "strip")
                async with elastic(engine, settings, config.fleet, base):
                    yield LoadedPolicy(policy, base, recorded)
            finally:
                await engine.close()


@asynccontextmanager
async def playing(
    loaded: LoadedPolicy, config: RunConfig, make_env: Callable[[], Env], store: Store, *, trains: bool = False
) -> AsyncIterator[tuple[Rollouts, Callable[[RolloutConfig], Actor | Program]]]:
    """A loaded policy's rollouts on one environment, and a function from limits to what acts in them; see `player`."""
    policy, folder = loaded.policy, Path(store.path).parent
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        served = await enter(serve_judges(config.rewards, config.policies, loaded.base))
        config, learners, limits = config.model_copy(update={"rewards": served}), config.learners, config.rollout
        policies = suit_engines(learners, config.policies, limits, config.cluster)
        opened = open_partners(policies, config.agents, learners[MAIN], limits, config.seed, loaded.base, folder)
        partners = await enter(opened)
        rewards = open_reward_workers(make_env, config.rewards, config.cluster, config.sandbox)
        make_env, scorers = await enter(rewards)
        held = await enter(holding(config, store, trains=trains))
        recorder, name, views = stack.enter_context(Recorder(store)), config.env.name, config.views
        rollouts = Rollouts(make_env, policy, limits, config.seed, partners, name, recorder, views=views)
        rollouts = replace(rollouts, counterfactuals=config.counterfactuals, combinations=config.combinations)
        if loaded.recorded is not None:
            rollouts = RerunRollouts.of(rollouts, loaded.recorded)
        gateways = await enter(gateway_workers(config.cluster, config.gateway, config.model, rollouts, loaded.base))
        placed = await enter(in_workers(config, rollouts, loaded.base, scorers, gateways, held))
        program: Program | None = None
        if config.agent is not None and config.cluster.environments:
            program = Program(config.agent)
        elif config.agent is not None and gateways is not None:
            program = distant_program(config.agent, config.gateway, gateways)
        elif config.agent is not None:
            own = serving(config.agent, policy, store, limits, config.gateway, config.agents, partners)
            program = await enter(own)
        yield placed, lambda limits: program or ModelActor(sampling_of(limits))


def with_shared_weights(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with the ways of all policies' weights through the run's folder, where others read them."""
    ways = {name: own.weights for name, own in config.policies.items() if own.weights is not None}
    shared = {name: _shared_weights(way, config.cluster, folder) for name, way in ways.items()}
    policies = {name: config.policies[name].model_copy(update={"weights": way}) for name, way in shared.items()}
    main = _shared_weights(config.weights, config.cluster, folder)
    return config.model_copy(update={"weights": main, "policies": {**config.policies, **policies}})


def _shared_weights(weights: WeightsConfig, machines: ClusterConfig, folder: Path) -> WeightsConfig:
    """The settings of weights that are in the run's folder where other machines read them."""
    if machines.name == "local" or getattr(weights, "dir", "") is not None:
        return weights
    return weights.model_copy(update={"dir": str(folder.absolute() / "weights")})

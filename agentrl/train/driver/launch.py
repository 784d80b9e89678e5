"""A whole run, from its configuration to its last checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agentrl import cluster
from agentrl.common import custom_code, garbage
from agentrl.config import RolloutConfig, RunConfig
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
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.fleet import elastic, make_engines, wait_until_started
from agentrl.rollout.rerun.engine import Recording, RerunEngine
from agentrl.rollout.rerun.rollouts import RerunRollouts
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.rollout.workers.environment_workers import in_workers
from agentrl.rollout.workers.gateway_workers import gateway_workers, served
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.display.pictures import transcripts
from agentrl.train.driver import setup
from agentrl.train.driver.loop import Loop
from agentrl.train.driver.opening import opened_run, own_model, stoppable
from agentrl.train.driver.preparation import make_generating_loop, prepare
from agentrl.train.driver.result import TrainResult, show
from agentrl.train.driver.session_worker import holding
from agentrl.train.evaluation.evaluated import before_training
from agentrl.train.evaluation.probe import HeldOutProbe
from agentrl.train.offline.run import train_on_data
from agentrl.train.plan.model_checks import engine_settings, prove_architecture, require_recording
from agentrl.train.plan.placing import reserve
from agentrl.train.plan.room import check_room
from agentrl.train.record import data_identity, recording
from agentrl.train.record.best import describe_best
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.trainers.teachers.teachers import check_teachers
from agentrl.types import Engine, Task

SHOWN = 6
"""The most conversations of a transcript."""


async def train_run(config: RunConfig, display: Display) -> TrainResult:
    """Train as the configuration says.

    The phases: build or fetch the model; imitate the expert (where the recipe says so); measure; reinforce;
    measure again. A resumed run continues at its checkpoint's step.
    """
    setup.quiet()
    if config.data is not None:
        with opened_run(config, display) as (folder, store):
            return await train_on_data(config, folder, store, display)
    sandboxes.configure(config.sandbox)
    make_env = factory(config.env.name, **config.env.kwargs)
    own = make_env()
    data = identity.of_splits(own, setup.data_splits(config, own))
    told = data_identity.check_same(config, own, data)
    with opened_run(config, display) as (folder, store):
        folder.data = data
        for line in (identity.described(data), *told):
            display.say(line)
        async with with_tools(make_env, config.tools) as equipped:
            return await _train(config, equipped, folder, store, display)


async def _train(
    config: RunConfig, make_env: Callable[[], Env], folder: RunFolder, store: Store, display: Display
) -> TrainResult:
    with display.part("loading the model"):
        base = await own_model(config, partial(setup.build_tiny, make_env), folder, display)
    if config.model.trust_remote_code:
        custom_code.allow(base)
    prove_architecture(config, base, display, trains=True)
    await check_teachers(config, base)
    splits = ("train", held_out_split(config, make_env()))
    async with player(config, make_env, base, store, trains=True, splits=splits, say=display.say) as (rollouts, act):
        loop, loaded = make_generating_loop(config, make_env, base, rollouts, act, folder, store, display)
        try:
            start = await prepare(loop, rollouts, make_env, base, loaded)
            async with held_out(config, loop, rollouts, act) as measure:
                earlier = before_training(folder.path, store, config, folder.data) if start else None
                before = earlier if start else await measure("before training", 0)
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
    config: RunConfig, loop: Loop, rollouts: Rollouts, act: Callable[[RolloutConfig], Actor | Program]
) -> AsyncIterator[Callable[[str, int], Awaitable[Evaluation]]]:
    """Yield an evaluation of the run on held-out tasks: it takes when (in words), and how many steps are done."""
    limits, apart = config.eval.limits(config.rollout), config.eval.concurrency is not None
    async with AsyncExitStack() as stack:
        policy = rollouts.policy
        if config.eval.weights == "averaged":
            policy = await stack.enter_async_context(averaged_policy(policy, engine_settings(config)))
            await wait_until_started(policy.engine)
        played, who = rollouts.limited(limits, apart=apart, policy=policy), act(limits)
        tasks = held_out_tasks(config, rollouts.make_env())  # once: a file may change while the run goes on
        display = loop.display
        probe = HeldOutProbe(config, rollouts.make_env, loop.folder.path, display.warn, display.say)

        async def measure(when: str, step: int) -> Evaluation:
            if policy.engine is not None and policy is not rollouts.policy:
                await loop.recovering(step, partial(loop.publish_average, policy.engine))
            loop.folder.seals.add(step, evaluation="begun")
            result = await _measure(when, step, config, played, who, tasks, loop.folder, loop.display, probe)
            found = await loop.learner.digests(phase="eval", step=step)
            loop.folder.seals.add(step, evaluation="ended", sessions=found)
            return result

        yield measure


def share_weights_folder(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with weights in the run's folder where other machines read them."""
    weights = config.weights
    if config.cluster.name == "local" or getattr(weights, "dir", "") is not None:
        return config
    return config.model_copy(update={"weights": weights.model_copy(update={"dir": str(folder.absolute() / "weights")})})


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
    config = share_weights_folder(config, folder)
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
    """The policy of a configuration, on its cluster; its engines are closed in the end.

    Args:
        config: what names it.
        played: the environments that it is to play, each with its own limits.
        base: the folder of its model.
        folder: where logs go.
        splits: which are played; none is the one that is evaluated.
        say: is called with lines about them.
    """
    with cluster.opened(config.cluster, folder / "logs") as opened:
        await asyncio.to_thread(reserve, opened, config, base)
        async with cluster.while_not_lost(opened.lost):
            renderer = get_renderer(base, config.model.renderer, config.model.stop)
            for own, make_env in played:
                chosen = splits or (held_out_split(own, make_env()),)
                for line in await check_room(own, make_env, renderer, base, chosen):
                    say(line)
            engine: Engine = make_engines(engine_settings(config), config.fleet, config.weights, base)
            try:
                require_recording(config.trainer, config.engine, engine)
                recorded = recording.load(config, engine) if config.rerun else None
                if recorded is not None:
                    engine = RerunEngine(engine, recorded)
                policy = Policy(renderer, engine, model=base, strip_reasoning=config.model.reasoning == "strip")
                async with elastic(engine, engine_settings(config), config.fleet, base):
                    yield LoadedPolicy(policy, base, recorded)
            finally:
                await engine.close()


@asynccontextmanager
async def playing(
    loaded: LoadedPolicy, config: RunConfig, make_env: Callable[[], Env], store: Store, *, trains: bool = False
) -> AsyncIterator[tuple[Rollouts, Callable[[RolloutConfig], Actor | Program]]]:
    """A loaded policy's rollouts on one environment, and a function from limits to what acts in them; see `player`."""
    policy, shape = loaded.policy, config.rollout

    def model(limits: RolloutConfig) -> Actor:
        return ModelActor(sampling_of(limits))

    async with (
        serve_judges(config, loaded.base) as config,
        open_partners(config, loaded.base, Path(store.path).parent) as partners,
        open_reward_workers(make_env, config) as (with_rewards, rewards),
        holding(config, store, trains=trains) as held,
    ):
        with Recorder(store) as recorder:
            name, views = config.env.name, config.views
            rollouts = Rollouts(with_rewards, policy, shape, config.seed, partners, name, recorder, views=views)
            if loaded.recorded is not None:
                rollouts = RerunRollouts.of(rollouts, loaded.recorded)
            async with (
                gateway_workers(config, rollouts, loaded.base) as gateways,
                in_workers(config, rollouts, loaded.base, rewards, gateways, held) as placed,
            ):
                if config.agent is None:
                    yield placed, model
                elif config.cluster.environments:
                    program = Program(config.agent)
                    yield placed, lambda _: program
                else:
                    async with served(config, policy, store, gateways, partners=partners) as own:
                        yield placed, lambda _: own


async def base_model(config: RunConfig, make_env: Callable[[], Env], folder: Path) -> Path:
    """The folder of the model to start from; the tiny one is built in `folder`."""
    if config.model.name == setup.TINY:
        return await setup.build_tiny(make_env, folder / "model", config.seed)
    return setup.resolve_model(config.model, config.algo)


async def _measure(
    when: str,
    step: int,
    config: RunConfig,
    rollouts: Rollouts,
    who: Actor | Program,
    tasks: Sequence[Task],
    folder: RunFolder,
    display: Display,
    probe: HeldOutProbe,
) -> Evaluation:
    """Evaluate on held-out tasks and write a few transcripts."""
    label = config.eval.label
    result, groups = await play_held_out(config, rollouts, who, display, f"evaluation {when}{label}", step, tasks=tasks)
    shown = [session for group in groups[:SHOWN] for session in group.sessions[:1]]
    name = when.removesuffix(" training")
    transcripts(folder.path / "transcripts" / f"{name.replace(' ', '-')}.md", f"{config.env.name}, {when}", shown)
    display.say(f"{name}{label}: {result}")
    return replace(result, metrics={**result.metrics, **await probe.look(groups, f"evaluation {when}", step)})

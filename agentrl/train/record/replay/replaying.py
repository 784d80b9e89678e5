"""Playing a recorded session again up to a turn, and on from there.

The weights of a version of the run are a checkpoint's, or computed again from the nearest one before it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

import orjson
from pydantic import Field, PositiveInt

from agentrl.common import custom_code
from agentrl.common.imports import names_only
from agentrl.config import AlgoConfig, ClusterConfig, ModelConfig, RunConfig, TrainerConfig
from agentrl.config.sections import Section
from agentrl.envs import sandboxes
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError, InvalidInput, UntrustedCode
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.episodes.groups import TRAIN, Rollouts
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.fleet import wait_until_started
from agentrl.rollout.rerun.replay_engine import ReplayEngine
from agentrl.sessions.store.store import Store
from agentrl.train.driver import base_model, launch
from agentrl.train.driver.resuming import step_of, whole_checkpoints
from agentrl.train.driver.setup import quiet
from agentrl.train.record import kept_code, manifest
from agentrl.train.record.recording import BY_TIME
from agentrl.train.record.verify.recomputed import repack
from agentrl.train.record.verify.recorded import Recorded, Step
from agentrl.train.trainers import Trainer
from agentrl.train.trainers.worker import place_trainer
from agentrl.types import MAIN, Engine, Node, Session, VersionSpan
from agentrl.types.branches import alone, branch_nodes
from agentrl.types.session import branch_of

STORE = "replays.db"
USED = ("env.", "engine.", "sandbox.", "rewards.", "policies.")
"""Sections without whose secrets nothing can be played."""


class ReplayConfig(Section):
    """The settings of `agentrl replay`."""

    turn: PositiveInt
    """The turn that is generated again, from 1; those before it on its path are the recorded ones."""
    n: PositiveInt = 1
    """The number of replays."""
    seed: int | None = Field(default=None, ge=0)
    """The first replay's seed, the next ones' follow; None: the first one has the recorded seeds, to reproduce."""
    model: str | None = None
    """Another model to generate with, of the same tokenizer; None: the weights that the turn was generated under."""


@dataclass(frozen=True)
class Replay:
    """A replayed session.

    Attributes:
        session: as `replays.db` has it, under the id SESSION@TURN, SESSION@TURN.SEED or, of another model, with ~MODEL.
        seed: None: the recorded ones.
        reproduced: the turn's tokens and log-probabilities are the recorded ones, bit for bit.
        whole: so is the rest of the session, with its reward.
        differences: where the environment answered otherwise before the turn, in words.
    """

    session: Session
    seed: int | None
    reproduced: bool
    whole: bool
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """All replays of a turn.

    Attributes:
        weights: where the weights came from, in words.
        exact: the engine promises to reproduce the turn from its seed: it is deterministic, with the recorded kernel.
    """

    recorded: Session
    turn: int
    weights: str
    exact: bool
    replays: list[Replay]

    @property
    def value(self) -> tuple[float, float] | None:
        """The mean score of the replays and its standard error; None without two scores."""
        scores = [replay.session.score for replay in self.replays if replay.session.score is not None]
        return (fmean(scores), stdev(scores) / len(scores) ** 0.5) if len(scores) > 1 else None

    def lines(self) -> Iterator[str]:
        """The result in lines of text."""
        yield f"recorded: turns {self.recorded.turns}, {self.recorded.status.value}, score {_score(self.recorded)}"
        for each in self.replays:
            seed = "recorded seeds" if each.seed is None else f"seed {each.seed}"
            same = "the recorded session to its end" if each.whole else f"turn {self.turn} as recorded"
            what = same if each.reproduced else f"turn {self.turn} differs from the recorded one"
            yield (
                f"{each.session.id}, {seed}: {what}; turns {each.session.turns}, {each.session.status.value}, "
                f"score {_score(each.session)}"
            )
            yield from (f"  the environment answered otherwise: {difference}" for difference in each.differences)
        if not self.exact:
            yield "this engine, or another model or kernel, does not promise the recorded tokens for the recorded seeds"
        if self.value is not None:
            yield "value of the turn: {:.4g} ± {:.2g} (mean score and standard error)".format(*self.value)


def _score(session: Session) -> str:
    return "none" if session.score is None else f"{session.score:.4g}"


async def replay(
    run: Path, name: str, config: ReplayConfig, say: Callable[[str], object] = lambda line: None, *, trust: bool = False
) -> Result:
    """Play a session again from one of its turns.

    The environment is opened with the session's seed and given the recorded turns, so tools are called again; where it
    answers otherwise than it did, the replay says so and goes on with the new answer. Replays are in `replays.db`.

    `name`: the session's id, in the run's folder. `say` displays a line. `trust`: import what the run's settings name.

    Raises:
        UntrustedCode: they name plug-ins by import paths, and `trust` is not given.
        ConfigError: there is no such session or turn, or its weights are not to be had.
    """
    quiet()
    if not trust:
        _require_no_code(run)
    recorded = Recorded.read(run)
    with Store(run / "sessions.db", read_only=True) as store, tempfile.TemporaryDirectory() as scratch:
        session, node, turn = _path(_session(store, name), config.turn)
        step = (session.step or 0) + 1
        settings = _settings(recorded.settings(step), session)
        _require_secrets(run, recorded)
        if settings.model.trust_remote_code:
            custom_code.allow(run / "model")
        if config.model is None:
            base, how = weights_of(recorded, store, node.versions[0], Path(scratch) / "weights")
        else:
            base, how = _other_model(settings.model.model_copy(update={"name": config.model}), settings.algo, run)
        for line in (how, *kept_code.changes(run, settings.model_dump(mode="json"))):
            say(line)
        sandboxes.configure(settings.sandbox)
        make_env = factory(settings.env.name, **settings.env.kwargs)
        async with AsyncExitStack() as opened:
            policy = await launch.load_policy(opened, [(settings, make_env)], base, run)
            kept = opened.enter_context(Store(run / STORE))
            rollouts, act = await launch.open_rollouts(opened, policy, settings, make_env, kept)
            inner = await _wait_for_engine(rollouts)
            if other := _other_kernel(recorded.process(step).kernel, inner.capabilities.kernel):
                say(other)
            if config.model is None:
                await _same_weights(recorded, node.versions[0], inner)
            engine = ReplayEngine(inner, session, turn, node.versions[0].version)
            own = replace(rollouts, policy=replace(rollouts.policy, engine=engine))
            limits = settings.rollout if session.phase == TRAIN else settings.eval.limits(settings.rollout)
            actor = act(limits)
            assert not isinstance(actor, Program)
            await own.prepare([session.task], config.n)
            replays = []
            for seed in _seeds(config):
                again = _beginning(session, config, seed)
                engine.seeds[again.id] = seed
                again = await own.limited(limits, apart=True).play(again, actor)
                replays.append(_compare(session, node, again, seed, engine.differences[again.id]))
            exact = config.model is None and inner.capabilities.deterministic and not other
    return Result(session, config.turn, how, exact, replays)


def _seeds(config: ReplayConfig) -> list[int | None]:
    """Each replay's seed; None is the recorded one."""
    return [number or None if config.seed is None else config.seed + number for number in range(config.n)]


def _other_kernel(recorded: str, own: str) -> str:
    """Tell that an engine computes by another kernel than was recorded; empty where it doesn't, or has no choice."""
    if not own or own == recorded:
        return ""
    return (
        f"the session was generated by the kernel {recorded or 'torch'}, and engine=local has {own} here, whose bits "
        "are others: turns can differ from the recorded ones"
    )


def _require_secrets(run: Path, recorded: Recorded) -> None:
    if lacking := sorted(name for name in recorded.secrets if name.startswith(USED)):
        raise ConfigError(f"{run}: {lacking[0]} is a secret, which is not recorded: the session can't be replayed")


def _require_no_code(run: Path) -> None:
    """Refuse a run whose settings name code of its own."""
    with names_only() as refused:
        recorded = Recorded.read(run)
    settings = [each.config for each in recorded.processes]
    files = [name for each in settings for name in kept_code.files(each.model_dump(mode="json"))]
    if any(each.model.trust_remote_code for each in settings):
        files += custom_code.files(run / "model")
    if found := sorted({*refused, *files}):
        raise UntrustedCode(
            f"{run}: its settings name code, which replaying a session runs: {', '.join(found)[:500]}; look at it, and "
            "say --trust"
        )


def _session(store: Store, name: str) -> Session:
    try:
        return store.load(name)
    except InvalidInput:
        raise ConfigError(f"session {name!r} is not in {store.path}; `agentrl view` lists sessions") from None


def _path(session: Session, turn: int) -> tuple[Session, Node, int]:
    """The session that ends on a turn's path, the turn's node, and its number there.

    That is the session itself, unless it was forked: then the branch that the turn is of, as an episode of its own.

    Args:
        session: the recorded one.
        turn: the number among all turns of the trained policy, whatever their branches, from 1.
    """
    turns = _list_played(session)
    if turn > len(turns):
        raise ConfigError(f"turn={turn}: session {session.id!r} has {len(turns)} turns of the trained policy")
    node = turns[turn - 1]
    branch = branch_of(session, node.id)
    if branch is None:
        return session, node, turn
    nodes = branch_nodes(session, branch)
    ended = replace(session, status=branch.status, rewards=branch.rewards, reward=branch.reward, error=branch.error)
    path = alone(ended, nodes)
    node = path.nodes[nodes.index(node)]
    return path, node, 1 + _list_played(path).index(node)


def _settings(config: RunConfig, session: Session) -> RunConfig:
    """The settings that the session was generated with, for one engine and no limits of other sessions' making."""
    if config.agent is not None:
        raise ConfigError(
            f"session {session.id!r} is an agent program's (agent={config.agent}), which can't be replayed"
        )
    if session.phase not in (TRAIN, "eval"):
        raise ConfigError(f"session {session.id!r} is of the phase {session.phase!r}; allowed: {TRAIN}, eval")
    alone = {"engines": 1, "urls": ()}
    return config.model_copy(
        update={
            "fleet": config.fleet.model_copy(update=alone),
            "cluster": type(config.cluster)(),
            "rollout": config.rollout.model_copy(update={"staleness": 0, "branch": type(config.rollout.branch)()}),
            "rerun": None,
        }
    )


def _other_model(model: ModelConfig, algo: AlgoConfig, run: Path) -> tuple[Path, str]:
    """The folder of a model with the run's tokenizer."""
    base, name = base_model.resolve_model(model, algo), model.name
    one, other = (folder / "tokenizer.json" for folder in (run / "model", base))
    if not other.is_file() or one.read_bytes() != other.read_bytes():
        raise ConfigError(f"model={name!r} has another tokenizer than {run}: the recorded turns are not its tokens")
    return base, f"model={name} generates"


async def _wait_for_engine(rollouts: Rollouts) -> Engine:
    engine = rollouts.policy.require_engine()
    await wait_until_started(engine)
    return engine


async def _same_weights(recorded: Recorded, span: VersionSpan, engine: Engine) -> None:
    """Refuse weights whose checksum is not the recorded one."""
    published = recorded.weights.get((span.version, span.incarnation))
    known = set(published.checksums.values()) - {""} if published else set()
    found = set((await as_managed(engine).checksums()).values()) - {""}
    if known and found and known != found:
        raise ConfigError(
            f"version {span.version} had weights of the checksum {min(known)}, and those found have {min(found)}"
        )


def _beginning(recorded: Session, config: ReplayConfig, seed: int | None) -> Session:
    """A session like the recorded one, before its first message."""
    model = "" if config.model is None else f"~{Path(config.model).name}"
    name = f"{recorded.id}@{config.turn}" + ("" if seed is None else f".{seed}") + model
    return Session(
        name,
        recorded.task,
        group=name,
        sample=recorded.sample,
        seed=recorded.seed,
        phase="replay",
        step=recorded.step,
        environment=recorded.environment,
    )


def _compare(recorded: Session, node: Node, again: Session, seed: int | None, differences: list[str]) -> Replay:
    place = next(i for i, each in enumerate(_list_played(recorded)) if each is node)
    found = _list_played(again)[place : place + 1]
    count = node.versions[0].end - node.versions[0].start  # what later versions generated of it can't come again
    reproduced = bool(found) and _list_generated(found[0], count) == _list_generated(node, count)
    whole = reproduced and [_content(each) for each in again.nodes] == [_content(each) for each in recorded.nodes]
    return Replay(again, seed, reproduced, whole and again.reward == recorded.reward, differences)


def _list_played(session: Session) -> list[Node]:
    return [node for node in session.nodes if node.sampled and node.policy == MAIN]


def _list_generated(node: Node, count: int) -> tuple[list[int], list[float]]:
    at = node.versions[0].start
    return node.token_ids[at : at + count], node.logprobs[at : at + count]


def _content(node: Node) -> tuple[list[int], list[float], float | None]:
    return node.token_ids, node.logprobs, node.reward


def weights_of(recorded: Recorded, store: Store, span: VersionSpan, scratch: Path) -> tuple[Path, str]:
    """The folder of the weights that a span was generated under, and in words how they were found.

    Raises:
        ConfigError: no checkpoint has them, and they can't be computed again bit for bit; the message says why.
    """
    version = span.version
    if recorded.weights and (version, span.incarnation) not in recorded.weights:
        raise ConfigError(f"{recorded.run}: version {version} of these weights was lost when the run was resumed")
    after = {int(row["step"]): int(row["version"]) for row in recorded.rows}
    after[0] = next((found.version for step, found in recorded.published if step == 0), 0)
    model, checkpoints = recorded.run / "model", whole_checkpoints(recorded.run)
    bases = {step_of(folder): folder for folder in checkpoints if manifest.damage(folder) is None}
    intact = model.is_dir() and manifest.damage(model) is None
    if intact and not recorded.settings(1).warm_start.steps:
        bases.setdefault(0, model)
    for step, folder in bases.items():
        if after.get(step) == version:
            return folder, f"version {version} is {folder.name}'s"
    steps = [step for step, found in sorted(after.items()) if found == version]
    nearest = max((step for step in bases if steps and step < steps[0]), default=None)
    if nearest is None or not intact:
        raise ConfigError(f"{recorded.run}: no intact checkpoint is of version {version} or, with model/, before it")
    _train_again(recorded, store, nearest, bases[nearest], steps[0], scratch)
    return scratch, f"version {version} was trained again from {bases[nearest].name}"


def _train_again(recorded: Recorded, store: Store, start: int, base: Path, last: int, out: Path) -> None:
    """Train the steps after `start` up to `last` on what is stored, and export the weights."""
    config = recorded.settings(start + 1)
    more = {"total_steps": config.steps, "seed": config.seed, "lora": config.lora}
    trainer = place_trainer(ClusterConfig(), recorded.run / "model", config.trainer, config.algo, **more)
    try:
        if not trainer.deterministic:
            raise ConfigError(
                f"{recorded.run}: no checkpoint is there after step {last}, and trainer={config.trainer.name} is not "
                "deterministic here, so its weights can't be computed again"
            )
        if base != recorded.run / "model":  # a checkpoint, also the one after a warm start
            trainer.load(base / "trainer")
        for step in recorded.steps(store):
            if start < step.number <= last:
                _take(trainer, step, config.algo, config.trainer, config.steps)
        trainer.export(out)
    finally:
        trainer.close()


def _take(trainer: Trainer, step: Step, algo: AlgoConfig, settings: TrainerConfig, steps: int) -> None:
    """Take a recorded step again."""
    scheduled = algo.schedule != "constant" and step.config.steps != steps
    if scheduled or (step.config.algo, step.config.trainer) != (algo, settings):
        what = "steps, which the learning rate follows," if scheduled else "settings of algo or trainer"
        raise ConfigError(f"{what} changed before {step.where}, which can't be taken again then")
    found = repack(step, step.trained) if step.trained is not None and not step.damaged else "its record is missing"
    if isinstance(found, str):
        raise ConfigError(f"{step.where} can't be taken again: {found}")
    metrics = orjson.loads(orjson.dumps(trainer.step(found.forests, found.algorithm.snapshot())))
    row = step.row or {}
    for name, value in metrics.items():
        if not name.startswith(BY_TIME) and value != row.get(name):
            raise ConfigError(f"{step.where} can't be taken again: {name} is {value}, and was {row.get(name)}")

"""Stored sessions scored anew by other rewards: nothing is generated, and nothing of the run is changed.

The result is an evaluation's folder beside the run, with copies of the sessions that have the new rewards in place of
the recorded ones, so `agentrl compare`, the viewer and `agentrl rescore` itself take it as any other. The folder's name
has the digest of what decides it: the same command goes on where it was stopped, group by group, and tries again what
the infrastructure failed. Only the rewards that are named here are imported: of the run's record nothing is run.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, PositiveInt

from agentrl import cluster
from agentrl.common.concurrency import concurrently
from agentrl.config import (
    NAMED,
    ClusterConfig,
    PolicyConfig,
    RewardConfig,
    RewardSections,
    RunConfig,
    SandboxConfig,
    Section,
)
from agentrl.config.secrets import public
from agentrl.config.sections import PathText
from agentrl.envs import sandboxes
from agentrl.envs.base import Env
from agentrl.envs.results import give_rewards
from agentrl.envs.scoring.group_rewards import give_group_rewards
from agentrl.errors import ConfigError, InfraError
from agentrl.overrides import read_yaml, validate, value_at
from agentrl.rollout.episodes.judges import serve_judges
from agentrl.rollout.stream.batch_metrics import Evaluation, TaskScores, evaluate_groups
from agentrl.rollout.workers.held import SessionHead, SessionRef
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.evaluation.rescore.changes import ScoreChanges, SessionScores, compare_scores
from agentrl.train.evaluation.suite.content import digest as content_digest
from agentrl.train.evaluation.suite.results import DATA, NAME, numbers, write_result
from agentrl.train.record import chain
from agentrl.train.record.files import write_atomically
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.seals import SETTINGS
from agentrl.types import GREEDY, Group, Session, Status

STORE, BEGUN = "sessions.db", "rescore.json"
KEY = "rescored"
"""Under this key a result has the run that it is of, and what changed."""
COUNTED = (Status.COMPLETED, Status.TRUNCATED, Status.AGENT_ERROR)


class RescoreConfig(Section):
    """The settings of `agentrl rescore`."""

    rewards: RewardSections = Field(default={})
    """The rewards, by name; they take the place of all recorded ones, step rewards included."""
    policies: dict[str, PolicyConfig] = Field(default={})
    """Policies that judge for a reward (`rewards.NAME.policy`)."""
    phase: str | None = None
    """The phase of a run's sessions: train or eval; None: all that there are, of an evaluation its own."""
    step: int | None = Field(default=None, ge=0)
    """Those of one step alone."""
    where: str | None = None
    """Those that fit a condition, as in `agentrl sessions RUN where=…`."""
    solved_at: float = 1.0
    """A session has solved its task with a new score of at least this."""
    concurrency: PositiveInt = 64
    """Sessions that are scored at once."""
    run_dir: PathText | None = None
    """The folder of the result; None: beside the run, by its name and the digest of these settings."""
    cluster: Annotated[ClusterConfig, NAMED] = ClusterConfig()
    """`cluster.rewards=N`: how many worker processes compute the rewards; 0: this one does."""
    sandbox: Annotated[SandboxConfig, NAMED] = SandboxConfig()
    """The provider with which rewards that use sandboxes make them."""


async def rescore(run: Path, config: RescoreConfig, display: Display) -> tuple[Path, Evaluation, ScoreChanges]:
    """Score a run's sessions anew.

    Returns:
        The folder of the result, the result, and what changed.

    Raises:
        ConfigError: a setting is wrong, or there are no such sessions.
        InfraError: every session was lost to the infrastructure.
    """
    if not config.rewards:
        raise ConfigError("rescore needs rewards: rewards.NAME=KIND (`agentrl plugins` lists them)")
    if chain.is_chain(run):
        stages = ", ".join(str(run / each.name) for each in chain.read(run).stages)
        raise ConfigError(f"{str(run)!r} is a chain of runs: name one of its stages ({stages})")
    if not (run / STORE).is_file():
        raise ConfigError(f"{str(run)!r} has no {STORE}: a folder of a run or an evaluation is wanted")
    settings = _settings(run, config)
    sandboxes.configure(config.sandbox)
    with display, Store(run / STORE, read_only=True) as source:
        if not (groups := _groups(source, config)):
            there = sorted({row.phase for row in source.find({}, sort="id", limit=10_000).rows} - {GREEDY})
            raise ConfigError(
                f"{str(run)!r} has no sessions that ended and fit phase=, step= and where= "
                f"(phases that it has: {', '.join(there) or 'none'})"
            )
        target, name = Path(settings.run_dir or ""), _name(run, config)
        with closing(RunFolder.create(target, settings, again=_has_begun(target, name))) as folder:
            write_atomically(target / BEGUN, orjson.dumps({"settings": name}))
            return await _rescore(run, config, folder, source, groups, display)


async def _rescore(
    run: Path,
    config: RescoreConfig,
    folder: RunFolder,
    source: Store,
    groups: Sequence[Sequence[str]],
    display: Display,
) -> tuple[Path, Evaluation, ScoreChanges]:
    began, target, settings = time.monotonic(), folder.path, folder.config
    with Store(target / STORE) as store:
        folder.seals.add(0, evaluation="begun")
        display.resume_hint = lambda: f"interrupted; the same command goes on, in {target}"
        opened = cluster.open_cluster(config.cluster, target / "logs") if config.cluster.rewards else nullcontext()
        with opened:
            scored, changes = await _score(groups, source, store, settings.rewards, settings.policies, config, display)
        result = _combine(evaluate_groups(scored, settings.eval))
        if all(session.status is Status.INFRA_ERROR for group in scored for session in group.sessions):
            first = scored[0].sessions[0]
            raise InfraError(f"every session was lost to the infrastructure; the first one: {first.error}")
        changed = compare_scores(changes, config.solved_at)
        about = {"env": settings.env.name, "seed": settings.seed, "seconds": round(time.monotonic() - began, 3)}
        data = _result(run, config, about, result, changed, scored)
        write_atomically(target / DATA, orjson.dumps(data["data"]))
        write_result(folder, store, data)
    return target, result, changed


def _name(run: Path, config: RescoreConfig) -> str:
    """The digest of the run and of the settings that decide the scores of its sessions."""
    chosen = public(config)
    decides = ("rewards", "phase", "step", "where", *(["policies"] if config.policies else []))
    return content_digest([str(run.resolve()), {key: chosen[key] for key in decides}])


def _has_begun(target: Path, name: str) -> bool:
    """Return whether the folder has a part of this result; another's sessions would be taken for its own."""
    if (target / BEGUN).is_file():
        if orjson.loads((target / BEGUN).read_bytes()).get("settings") == name:
            return True
        raise ConfigError(
            f"run_dir={str(target)!r} has scores by other rewards, or of other sessions; give another run_dir, or none"
        )
    if (target / STORE).exists():
        raise ConfigError(f"run_dir={str(target)!r} holds a run, whose record stays as it is; give another one")
    return False


def _settings(run: Path, config: RescoreConfig) -> RunConfig:
    """The settings of the result's folder: the run's environment by its name, and these rewards."""
    recorded = _read_recorded(run)
    if recorded["forked"] and config.phase != "eval":
        raise ConfigError(f"{str(run)!r} forked its sessions, which have a reward for each path: give phase=eval")
    own = config.run_dir or str(run.parent / f"rescore-{run.name}-{_name(run, config)}")
    if Path(own).resolve() == run.resolve():
        raise ConfigError(f"run_dir={own!r} is the run itself, whose record stays as it is")
    tree = {"env": {"name": recorded["env"]}, "run_dir": own, "rewards": config.rewards, "cluster": config.cluster}
    tree |= {"policies": config.policies}
    return validate({**tree, "sandbox": config.sandbox, "eval": {"solved_at": config.solved_at}}, RunConfig)


def _read_recorded(run: Path) -> dict[str, Any]:
    """Return what is known of a run: its environment, its policy, and its data, as far as they are recorded."""
    known: dict[str, Any] = {"env": "unknown", "policy": run.name, "split": "", "data": {}}
    file = run / SETTINGS
    tree = read_yaml(file) if file.is_file() else {}
    env = tree.get("env")
    known["forked"] = value_at(tree, "rollout.branch.name") not in (None, "none")
    known["env"] = str((value_at(tree, "env.name") if isinstance(env, Mapping) else env) or "unknown")
    known["policy"] = str(value_at(tree, "model.name") or run.name)
    try:
        result = orjson.loads((run / NAME).read_bytes())
        known |= {key: result[key] for key in ("policy", "split", "data") if key in result}
    except (OSError, ValueError, TypeError):
        pass
    return known


def _groups(source: Store, config: RescoreConfig) -> list[list[str]]:
    """The ids of the sessions to score, by group; those that ended."""
    chosen = {"phase": config.phase, "step": config.step, "where": [config.where] if config.where else None}
    filters: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    filters["status"] = [status.value for status in COUNTED]
    found: dict[str, list[str]] = {}
    after = None
    while True:
        page = source.find(filters, sort="id", limit=10_000, after=after)
        for row in page.rows:
            if row.phase != GREEDY:
                found.setdefault(row.group or row.id, []).append(row.id)
        after = page.next
        if after is None:
            return list(found.values())


async def _score(
    groups: Sequence[Sequence[str]],
    source: Store,
    store: Store,
    rewards: Mapping[str, RewardConfig],
    policies: Mapping[str, PolicyConfig],
    config: RescoreConfig,
    display: Display,
) -> tuple[list[Group], list[SessionScores]]:
    """The groups with their new scores, as far as they are there already or can be given; and the changes."""
    scored: list[Group] = []
    changes: list[SessionScores] = []

    def keep(members: Sequence[Session]) -> None:
        refs = [SessionRef.of(SessionHead.of(each), each.task, store.load) for each in members]
        scored.append(Group(members[0].group, members[0].task, list(refs), number=members[0].group_number or 0))
        rows = source.find({"id": [each.id for each in members]}, limit=len(members)).rows
        before = {row.id: row.score for row in rows}
        for each in members:
            was, now = before.get(each.id), each.score
            if was is not None and now is not None and each.status is not Status.INFRA_ERROR:
                changes.append(SessionScores(each.id, each.group or each.id, was, now))

    done = set(store.ids(status=[status.value for status in COUNTED]))
    left = [ids for ids in groups if not done.issuperset(ids)]
    for ids in groups:
        if done.issuperset(ids):
            keep([store.load(each) for each in ids])
    async with (
        serve_judges(rewards, policies, None) as served,
        open_reward_workers(Env, served, config.cluster, config.sandbox) as (make_env, _),
    ):
        with display.part("scoring", sum(map(len, left))) as advance:
            for batch in _batches(left, config.concurrency):
                for members in await concurrently(
                    score_group([source.load(each) for each in ids], make_env) for ids in batch
                ):
                    with store.batch():
                        for each in members:
                            store.save(each, replace=True)
                            advance(each)
                    keep(members)
    return scored, changes


def _batches(groups: Sequence[Sequence[str]], most: int) -> Iterator[list[Sequence[str]]]:
    """Groups that are scored at the same time: about as many sessions as are allowed, one group at least."""
    batch: list[Sequence[str]] = []
    for ids in groups:
        if batch and sum(map(len, batch)) + len(ids) > most:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch


async def score_group(sessions: Sequence[Session], make_env: Callable[[], Env]) -> list[Session]:
    """Return copies of a group's sessions with the rewards of these environments alone."""
    copies = [_drop_scores(session) for session in sessions]

    async def score(session: Session) -> None:
        env = make_env()
        agents = tuple(session.agent_rewards) + tuple(session.partner_rewards)
        played = tuple(session.agent_rewards)
        session.agent_rewards, session.partner_rewards = {}, {}
        if agents:
            env.agents = agents
            await give_rewards(env, session, played)
        else:
            await give_rewards(env, session)

    await concurrently(map(score, copies))
    await give_group_rewards(make_env, copies)
    return copies


def _drop_scores(session: Session) -> Session:
    nodes = [replace(node, reward=None) if node.reward is not None else node for node in session.nodes]
    return replace(session, nodes=nodes, rewards={}, reward=None, info={**session.info}, counters={**session.counters})


def _combine(result: Evaluation) -> Evaluation:
    """A task that a run played in several groups has its scores in one place, as results are compared."""
    tasks: dict[tuple[str, str], TaskScores] = {}
    for each in result.scores:
        known = tasks.get((each.task, each.digest))
        scores = [*(known.scores if known else ()), *each.scores]
        tasks[each.task, each.digest] = replace(each, scores=scores)
    return replace(result, scores=list(tasks.values()))


def _result(
    run: Path,
    config: RescoreConfig,
    about: Mapping[str, Any],
    result: Evaluation,
    changes: ScoreChanges,
    groups: Sequence[Group],
) -> dict[str, Any]:
    """Return what `result.json` has: an evaluation's, and the run with what changed."""
    recorded = _read_recorded(run)
    ends = Counter(session.status.value for group in groups for session in group.sessions)
    known = {"policy": recorded["policy"], "agent": None, "split": recorded["split"]}
    known |= {"ends": dict(ends), "finding": None}
    rescored = {"run": str(run), "rewards": public(config)["rewards"], "changes": changes.json()}
    return {**about} | known | numbers(result) | {"data": recorded["data"], KEY: rescored}


def describe_rescore(run: Path, folder: Path, result: Evaluation, changes: ScoreChanges) -> list[str]:
    """Return what `rescore` gave, in words."""
    lines = [str(result), *changes.lines(), f"result: {folder}"]
    lines.append(f"  agentrl compare {shlex.quote(str(run))} {shlex.quote(str(folder))}")
    if result.infra_errors:
        lines.append(f"{result.infra_errors} sessions were lost to infrastructure; the same command tries them again")
    return lines

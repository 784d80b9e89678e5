"""`agentrl eval`: measure a policy without training it; the results go into a folder of their own.

    config.yaml      the settings, all of them, defaults included
    result.json      the summary: mean, confidence, pass@k, pass^k, tokens and cost, how sessions ended, why some are
                     excluded, and every task's scores
    data.json        which data it has, from its beginning on; see `agentrl.envs.data.identity`
    sessions.db      every session, token for token, written while it is played
    transcripts/     a few conversations

Scripted policies (expert, noop) and models behind an API are measured the same way, without torch.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from agentrl import cluster
from agentrl.config import ApiConfig, ClusterConfig, EnvConfig, RunConfig
from agentrl.config.secrets import without_secrets
from agentrl.envs import sandboxes
from agentrl.envs.added_tools import with_tools
from agentrl.envs.base import Env
from agentrl.envs.data import identity
from agentrl.envs.episode import ScriptedActor
from agentrl.envs.registry import factory
from agentrl.envs.turns import Actor
from agentrl.errors import ConfigError, require_extra
from agentrl.rollout.episodes.evaluation import SCRIPTED, held_out_split, play_held_out
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.judges import judging_engines, serve_judges
from agentrl.rollout.episodes.opponents import open_partners
from agentrl.rollout.episodes.policies import Policy, sampling_of
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.fleet import wait_until_started
from agentrl.rollout.remote import is_remote, remote_actor
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.rollout.stream.health import failures, finding, sessions_of
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.display.pictures import transcripts
from agentrl.train.driver.resuming import flat
from agentrl.train.evaluation.probe import HeldOutProbe
from agentrl.train.evaluation.suite.results import DATA, numbers, write_result
from agentrl.train.record.files import run_path, write_atomically
from agentrl.train.record.run_folder import RunFolder
from agentrl.types import MAIN, Group, Session

IGNORED = {
    **dict.fromkeys(("trainer", "algo", "weights", "warm_start", "steps", "resume", "rerun", "rerun_answers"), ""),
    **dict.fromkeys(("checkpoint_every", "keep_checkpoints", "mismatch_bound", "faults", "watchdog"), ""),
    **dict.fromkeys(("checkpoint_url", "checkpoint_url_timeout", "keep_best", "grace", "schedule", "lora"), ""),
    **dict.fromkeys(("metrics", "metrics_address", "metrics_project", "tracing", "dry_run", "eval.every"), ""),
    **dict.fromkeys(("record_logprobs", "require_provenance", "allow_no_signal", "rollout.sampler"), ""),
    **dict.fromkeys(("rollout.branch", "rollout.staleness", "rollout.max_replaced", "rollout.order"), ""),
    **dict.fromkeys(("rollout.filter", "rollout.priority", "rollout.reuse", "rollout.reuse_age"), ""),
    **dict.fromkeys(("rollout.oversample", "rollout.group_deadline"), ""),
    "eval.weights": "model=CHECKPOINT/averaged",
    "rollout.groups_per_step": "eval.tasks",
    "rollout.group_size": "eval.n",
    "rollout.temperature": "eval.temperature",
}
"""Settings of training that an evaluation does not use, and the setting to use instead."""
SAMPLING = ("eval.temperature", "rollout.top_p", "eval.top_p", "eval.turn_tokens", "rollout.turn_tokens")
"""Settings that a model uses, here or behind an API, and a scripted policy does not."""
ENGINES_OWN = (
    *("model", "engine", "fleet", "agent", "cluster"),
    *("eval.session_tokens", "rollout.session_tokens", "rollout.context_tokens"),
    *("eval.top_k", "eval.min_p", "rollout.top_k", "rollout.min_p", "rollout.repetition_penalty"),
)
"""Settings that only a model on an engine uses."""
OF_REWARD_WORKERS = (
    *("cluster.rewards", "cluster.name", "cluster.address", "cluster.start_timeout", "cluster.max_restarts"),
    "cluster.resources.rewards",
)
"""Settings of the cluster that any policy uses where it has reward workers."""


def list_ignored(tree: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a tree that an evaluation would ignore, and why."""
    policy = str(tree.get("policy", "model"))
    machines = tree.get("cluster")
    rewarding = isinstance(machines, Mapping) and "rewards" in machines
    judging = _judging(tree)
    found = {}
    for key in flat(tree):
        if (rewarding and _within(key, OF_REWARD_WORKERS)) or _within(key, judging):
            continue
        unused = next((name for name in IGNORED if _within(key, (name,))), None)
        if unused is not None:
            instead = f"; an evaluation has {IGNORED[unused]}" if IGNORED[unused] else ""
            found[key] = f"is for training{instead}"
        elif policy in SCRIPTED and _within(key, (*SAMPLING, *ENGINES_OWN, "agents", "policies", "api")):
            found[key] = f"is for models, and policy={policy} is a script"
        elif is_remote(policy) and _within(key, ENGINES_OWN):
            found[key] = f"is for a model on an engine of ours, and policy={policy} is an API; it has api.*"
        elif policy != "model" and key in ("model", "model.name"):
            found[key] = f"names a model, and policy={policy} names one too"
        elif not is_remote(policy) and _within(key, ("api",)):
            found[key] = "is for policy=URL"
    return found


def _judging(tree: Mapping[str, Any]) -> list[str]:
    """The settings of the policies that rewards name as judges; any policy that is evaluated may be judged."""
    rewards = tree.get("rewards")
    each = rewards.values() if isinstance(rewards, Mapping) else ()
    return [f"policies.{own['policy']}" for own in each if isinstance(own, Mapping) and own.get("policy")]


def _within(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def refuse_ignored(tree: Mapping[str, Any]) -> None:
    """Refuse settings that an evaluation would ignore."""
    if found := list_ignored(tree):
        raise ConfigError("\n".join(f"{key} {why}; leave it out of an evaluation" for key, why in found.items()))


async def evaluate_run(config: RunConfig, display: Display) -> Evaluation:
    """Measure a policy (a model, a script, or what an API answers) on held-out tasks.

    Raises:
        ConfigError: a setting does not fit.
        InfraError: every session ended in an infrastructure error.
    """
    sandboxes.configure(config.sandbox)
    config = resolve_config(config)
    path = run_path(config.env.name, config.run_dir, prefix="eval-")
    with _open_folder(RunFolder.create(path, config)) as (folder, store), display:
        async with loaded_policy([config], folder.path, display) as rollouts_of:
            result, _ = await measure(rollouts_of, folder, store, display)
    return result


def resolve_config(config: RunConfig) -> RunConfig:
    """The configuration with the evaluation's own limits, and with the model that `policy` may name."""
    config = config.model_copy(update={"rollout": config.eval.limits(config.rollout)})
    if config.policy in ("model", *SCRIPTED) or is_remote(config.policy):
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"name": config.policy})})


Opened = AbstractAsyncContextManager[tuple[Rollouts, Actor | Program]]
RolloutsOf = Callable[[RunConfig, Store], Opened]
"""A function that opens the rollouts of an evaluation by a policy that is loaded, and names their actor."""


@asynccontextmanager
async def loaded_policy(configs: Sequence[RunConfig], folder: Path, display: Display) -> AsyncIterator[RolloutsOf]:
    """Load the policy for evaluations, whose settings of it are the same; logs go into the folder."""
    config = configs[0]
    if config.policy in SCRIPTED:
        with _reward_cluster(config.cluster, folder):
            yield partial(_without_tokens, SCRIPTED[config.policy])
        return
    if is_remote(config.policy):
        async with remote_actor(config.policy, config.api, sampling_of(config.rollout)) as actor:
            with _reward_cluster(config.cluster, folder):
                yield partial(_without_tokens, actor)
        return
    with require_extra("train"):
        from agentrl.train.driver import base_model, launch, setup
        from agentrl.train.plan import model_checks
    setup.quiet()
    played = [(each, _factory(each.env)) for each in configs]
    with TemporaryDirectory() as scratch:
        if config.model.name == setup.TINY:
            display.warn(
                "model=tiny is made for this evaluation and has learned nothing; "
                "for a trained one use model=runs/NAME/checkpoints/step-…"
            )
        with display.part("loading the model"):
            base = await base_model.find_or_build(
                config.model, config.algo, config.seed, _factory(config.env), Path(scratch)
            )
        model_checks.prove_architecture(config.learners[MAIN], config.policies, base, display, trains=False)
        async with AsyncExitStack() as opened:
            policy = await launch.load_policy(opened, played, base, folder, say=display.say)

            @asynccontextmanager
            async def rollouts_of(own: RunConfig, store: Store) -> AsyncIterator[tuple[Rollouts, Actor | Program]]:
                async with with_tools(_factory(own.env), own.tools) as make_env, AsyncExitStack() as own_rollouts:
                    rollouts, act = await launch.open_rollouts(own_rollouts, policy, own, make_env, store)
                    with display.part("starting the engine"):
                        await asyncio.gather(*map(wait_until_started, rollouts.engines))
                    yield rollouts, act(own.rollout)

            yield rollouts_of


def _reward_cluster(limits: ClusterConfig, folder: Path) -> AbstractContextManager[object]:
    """The machines of reward workers, where the policy itself needs none."""
    return cluster.open_cluster(limits, folder / "logs") if limits.rewards else nullcontext()


@asynccontextmanager
async def _without_tokens(
    actor: Actor, config: RunConfig, store: Store
) -> AsyncIterator[tuple[Rollouts, Actor | Program]]:
    """Rollouts of what is no engine: their sessions hold messages."""
    policies, agents, limits, seed = config.policies, config.agents, config.rollout, config.seed
    if isinstance(actor, ScriptedActor):  # it plays every agent
        policies = {name: policies[name] for name in judging_engines(config.rewards, policies).values()}
        agents = {}
    lacking, folder = f"policy={config.policy} has no weights to start from", Path(store.path).parent
    main = config.learners[MAIN]
    async with (
        with_tools(_factory(config.env), config.tools) as make_env,
        serve_judges(config.rewards, policies, None) as rewards,
        open_reward_workers(make_env, rewards, config.cluster, config.sandbox) as (with_rewards, _),
        open_partners(policies, agents, main, limits, seed, None, folder, lacking) as partners,
    ):
        with Recorder(store) as recorder:
            policy, name = Policy(NullRenderer()), config.env.name
            rollouts = Rollouts(with_rewards, policy, limits, seed, partners, name, recorder, store.load)
            await asyncio.gather(*map(wait_until_started, rollouts.engines))
            yield rollouts, actor


def _factory(env: EnvConfig) -> Callable[[], Env]:
    return factory(env.name, **env.kwargs)


async def measure(
    rollouts_of: RolloutsOf,
    folder: RunFolder,
    store: Store,
    display: Display,
    *,
    name: str = "evaluation",
    detail: Callable[[], str] = str,
    ended: Callable[[Session], None] = lambda session: None,
    about: Mapping[str, Any] | None = None,
    hint: str = "",
) -> tuple[Evaluation, dict[str, Any]]:
    """Play one evaluation, and write its result and some conversations into its folder.

    Args:
        rollouts_of: opens rollouts by the policy.
        folder: the evaluation's own, made with settings that `resolve_config` returned; sessions that its store holds
            already are taken, or continued.
        store: of its sessions.
        display: displays progress.
        name: what the display calls it.
        detail: what the display says beside it.
        ended: is called with each session that has ended.
        about: what `result.json` has besides.
        hint: what an interrupted one prints besides.

    Returns:
        The result, and the content of `result.json`.

    Raises:
        InfraError: every session ended in an infrastructure error.
    """
    began, config = time.monotonic(), folder.config
    env, who = _factory(config.env)(), label(config.policy, config.played_by, config.api, config.agent)
    split = held_out_split(config.eval, env)
    found = identity.of_splits(env, [split])
    display.say(f"evaluating {who} on {config.env.name}, split {split}, in {folder.path}")
    display.say(identity.describe_identity(found))
    _keep_identity(folder.path, found, display, accept_changed=config.accept_changed_data)
    kept = set[str]()
    display.resume_hint = lambda: f"interrupted; {len(kept)} sessions are in {folder.path / 'sessions.db'}{hint}"
    folder.seals.add(0, evaluation="begun")

    def keep(session: Session) -> None:
        kept.add(session.id)
        ended(session)

    async with rollouts_of(config, store) as (rollouts, actor):
        rollouts.left.find_evaluated(store)
        result, groups = await play_held_out(config.eval, rollouts, actor, display, name, ended=keep, detail=detail)
        probe = HeldOutProbe(config, rollouts.make_env, folder.path, display.warn, display.say)
        result = replace(result, metrics={**result.metrics, **await probe.look(groups, name, 0)})
    transcripts(folder.path / "transcripts" / "eval.md", f"{config.env.name}, {who}", groups)
    env_name, seed, agent = config.env.name, config.seed, config.agent
    data: dict[str, Any] = {"env": env_name, "policy": who, "agent": agent, "split": split, "seed": seed}
    data |= _as_json(result, groups, time.monotonic() - began)
    data |= {identity.KEY: identity.json(found), **(about or {})}
    write_result(folder, store, data)
    return result, data


def _keep_identity(folder: Path, found: identity.Identities, display: Display, *, accept_changed: bool) -> None:
    """Write which data an evaluation has, before it begins; one that goes on has to have the same."""
    file = folder / DATA
    before = identity.read(orjson.loads(file.read_bytes())) if file.exists() else {}
    if changed := identity.differences(before, found):
        what = f"{folder}: the data changed since this evaluation began: {'; '.join(changed)}"
        if not accept_changed:
            raise ConfigError(
                f"{what}. Another run_dir measures all of it anew; accept_changed_data=true measures here what is "
                "other, and replaces the result"
            )
        display.warn(f"{what} (accept_changed_data=true)")
    write_atomically(file, orjson.dumps(identity.json(found)))


def label(policy: str, model: str, api: ApiConfig, agent: str | None) -> str:
    """Name what is measured: an API's model, or `model` or a script, and the agent program that it answers."""
    if is_remote(policy):
        return f"{api.model} at {without_secrets(policy)}"
    return f"agent {agent!r} with {model}" if agent else model


@contextmanager
def _open_folder(made: RunFolder) -> Iterator[tuple[RunFolder, Store]]:
    """The evaluation's new folder and its store; removed where it fails before any session has ended."""
    with closing(made) as folder:
        empty = True
        try:
            with Store(folder.path / "sessions.db") as store:
                try:
                    yield folder, store
                finally:
                    empty = set(store.counts()) <= {"open", "aborted"}
        except Exception:
            if empty:
                folder.discard()
            raise


def _as_json(result: Evaluation, groups: Sequence[Group], seconds: float) -> dict[str, Any]:
    sessions = sessions_of(groups)
    about = {
        "seconds": round(seconds, 3),
        "ends": dict(Counter(session.status.value for session in sessions)),
        "finding": finding(sessions) or failures(sessions) or None,
    }
    return about | numbers(result)

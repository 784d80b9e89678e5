"""`agentrl eval`: measure a policy without training it; the results go into a folder of their own.

    config.yaml      the settings, all of them, defaults included
    result.json      the summary: mean, confidence, pass@k, pass^k, tokens and cost, how sessions ended, why some are
                     excluded, and every task's scores
    sessions.db      every session, token for token, written while it is played
    transcripts/     a few conversations

Scripted policies (expert, noop) are measured the same way, without a model or torch.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from agentrl.config import RunConfig
from agentrl.envs import sandboxes
from agentrl.envs.base import Env
from agentrl.envs.episode import Actor
from agentrl.envs.registry import factory
from agentrl.envs.rewards import rewarded
from agentrl.errors import ConfigError, missing_extra
from agentrl.rollout.evaluation import SCRIPTED, held_out_split, play_held_out
from agentrl.rollout.fleet import started
from agentrl.rollout.groups import Rollouts
from agentrl.rollout.health import failures, finding, sessions_of
from agentrl.rollout.policies import Policy
from agentrl.rollout.programs import Program
from agentrl.rollout.stats import Evaluation
from agentrl.sessions.recorder import Recorder
from agentrl.sessions.renderers.null import NullRenderer
from agentrl.sessions.store import Store
from agentrl.train.display import Display
from agentrl.train.files import write_atomically
from agentrl.train.pictures import transcripts
from agentrl.train.run_folder import RunFolder, run_path
from agentrl.types import Group

SHOWN = 6
"""Conversations in a transcript."""
IGNORED = {
    **dict.fromkeys(("trainer", "algo", "weights", "warm_start", "steps", "resume", "rerun", "rerun_answers"), ""),
    **dict.fromkeys(("checkpoint_every", "keep_checkpoints", "mismatch_bound", "faults", "watchdog"), ""),
    **dict.fromkeys(("checkpoint_url", "checkpoint_url_timeout"), ""),
    "eval.weights": "model=CHECKPOINT/averaged",
    "rollout.groups_per_step": "eval.tasks",
    "rollout.group_size": "eval.n",
    "rollout.temperature": "eval.temperature",
}
"""Settings of training that an evaluation does not use, and the setting to use instead."""
MODELS_OWN = (
    *("model", "engine", "fleet", "agent", "agents", "policies", "eval.temperature", "rollout.top_p"),
    *("eval.top_p", "eval.turn_tokens", "eval.session_tokens"),
    *("rollout.turn_tokens", "rollout.session_tokens", "rollout.context_tokens"),
)
"""Settings that only a model uses, and a scripted policy does not."""


def ignored(tree: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a tree that an evaluation would ignore, and why."""
    policy = tree.get("policy", "model")
    found = {}
    for key in _leaves(tree):
        unused = next((name for name in IGNORED if key == name or key.startswith(f"{name}.")), None)
        if unused is not None:
            instead = f"; an evaluation has {IGNORED[unused]}" if IGNORED[unused] else ""
            found[key] = f"is for training{instead}"
        elif policy in SCRIPTED and any(key == name or key.startswith(f"{name}.") for name in MODELS_OWN):
            found[key] = f"is for models, and policy={policy} is a script"
        elif policy != "model" and key in ("model", "model.name"):
            found[key] = f"names a model, and policy={policy} names one too"
    return found


def refuse_ignored(tree: Mapping[str, Any]) -> None:
    """Refuse settings that an evaluation would ignore.

    Raises:
        ConfigError: there are some; the message names each, and why.
    """
    if found := ignored(tree):
        raise ConfigError("\n".join(f"{key} {why}; leave it out of an evaluation" for key, why in found.items()))


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


async def evaluate_run(config: RunConfig, display: Display) -> Evaluation:
    """Measure a policy (a model or a script) on held-out tasks.

    Raises:
        ConfigError: a setting does not fit.
        InfraError: every session ended in an infrastructure error.
    """
    sandboxes.configure(config.sandbox)
    make_env = factory(config.env.name, **config.env.kwargs)
    split = held_out_split(config, make_env())
    config = config.model_copy(update={"rollout": config.eval.limits(config.rollout)})
    if config.policy not in ("model", *SCRIPTED):
        model = config.model.model_copy(update={"name": config.policy})
        config = config.model_copy(update={"model": model})
    began = time.monotonic()
    async with _player(config, make_env, display) as (folder, rollouts, who):
        display.say(f"evaluating {_label(config)} on {config.env.name}, split {split}, in {folder.path}")
        kept = set[str]()
        display.resume_hint = lambda: f"interrupted; {len(kept)} sessions are in {folder.path / 'sessions.db'}"
        result, groups = await play_held_out(config, rollouts, who, display, ended=lambda s: kept.add(s.id))
        shown = [session for group in groups[:SHOWN] for session in group.sessions[:1]]
        transcripts(folder.path / "transcripts" / "eval.md", f"{config.env.name}, {_label(config)}", shown)
        data = _as_json(config, split, result, groups, time.monotonic() - began)
        write_atomically(folder.path / "result.json", orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n")
    return result


@asynccontextmanager
async def _player(
    config: RunConfig, make_env: Callable[[], Env], display: Display
) -> AsyncIterator[tuple[RunFolder, Rollouts, Actor | Program]]:
    """The evaluation's folder, its rollouts, and the actor or program."""
    if config.policy in SCRIPTED:
        policy, name = Policy(NullRenderer()), config.env.name
        async with rewarded(make_env, config.rewards) as scored:
            rollouts = Rollouts(scored, policy, config.rollout, config.seed, environment=name)
            with _kept(config) as (folder, store), display, Recorder(store) as recorder:
                yield folder, replace(rollouts, recorder=recorder), SCRIPTED[config.policy]
        return
    try:
        from agentrl.train import launch, model_checks, setup
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "torch", "train") from error
    setup.quiet()
    with TemporaryDirectory() as scratch, _kept(config) as (folder, store), display:
        if config.model.name == setup.TINY:
            display.warn(
                "model=tiny is made for this evaluation and has learned nothing; "
                "for a trained one use model=runs/NAME/checkpoints/step-…"
            )
        with display.part("loading the model"):
            base = await launch.base_model(config, make_env, Path(scratch))
        model_checks.prove_architecture(config, base, display, trains=False)
        async with launch.player(config, make_env, base, store) as (rollouts, act):
            with display.part("starting the engine"):
                await asyncio.gather(*map(started, rollouts.engines))
            yield folder, rollouts, act(config.rollout)


def _label(config: RunConfig) -> str:
    name = config.policy if config.policy in SCRIPTED else config.model.name
    return f"agent {config.agent!r} with {name}" if config.agent else name


@contextmanager
def _kept(config: RunConfig) -> Iterator[tuple[RunFolder, Store]]:
    """A new folder for the evaluation, and its store; removed where it fails before any session has ended."""
    with closing(RunFolder.create(run_path(config, "eval-"), config)) as folder:
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


def _as_json(
    config: RunConfig, split: str, result: Evaluation, groups: Sequence[Group], seconds: float
) -> dict[str, Any]:
    sessions = sessions_of(groups)
    about = {
        "env": config.env.name,
        "policy": config.policy if config.policy in SCRIPTED else config.model.name,
        "agent": config.agent,
        "split": split,
        "seed": config.seed,
        "seconds": round(seconds, 3),
        "ends": dict(Counter(session.status.value for session in sessions)),
        "finding": finding(sessions) or failures(sessions) or None,
    }
    passes = {"pass_at": result.pass_at, "pass_hat": result.pass_hat}
    by_name = {name: {str(k): value for k, value in each.items()} for name, each in passes.items()}
    return about | asdict(result) | by_name

"""Digests of what decides an evaluation's sessions: a result is valid for the same content, and for no other.

What can't be looked into is taken by its name: a model behind a URL, a generator's code beyond its environment's own
file. Deadlines, concurrency and the number of samples are left out: they change how many sessions there are and how
long one waits for them, not what a finished session is.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import agentrl
from agentrl.common.untrusted import safe_json
from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.rollout.episodes.evaluation import SCRIPTED, held_out_split
from agentrl.rollout.remote import is_remote
from agentrl.train.driver import base_model, setup
from agentrl.train.record import manifest
from agentrl.types import Task

LIMITS = ("temperature", "top_p", "max_turns", "turn_tokens", "session_tokens", "context_tokens", "tool_timeout")
ENGINE = ("name", "dtype", "max_context")


def digest(value: Any) -> str:
    """16 hexadecimal digits of a value that JSON can express."""
    try:
        data = json.dumps(value, sort_keys=True, default=str)
    except TypeError:  # keys of several types
        data = json.dumps(safe_json(value, whole=True), sort_keys=True)
    return hashlib.blake2b(data.encode(), digest_size=8).hexdigest()


def policy_content(config: RunConfig) -> dict[str, Any]:
    """Return the identity of the policy that is measured."""
    if config.policy in SCRIPTED:
        return {"policy": config.policy}
    policies = {name: policy.model_dump(mode="json") for name, policy in config.policies.items()}
    if is_remote(config.policy):
        own = {"policy": config.policy, "api": config.api.model_dump(mode="json", exclude={"retries", "key_env"})}
        return own | ({"policies": policies, "agents": config.agents} if policies else {})
    tiny, named = config.played_by == setup.TINY, config.model.model_copy(update={"name": config.played_by})
    script = Path((config.agent or "").partition(".py:")[0] + ".py")
    return {
        "model": "made on the spot" if tiny else _files(base_model.resolve_model(named, config.algo)),
        "renderer": config.model.renderer,
        "reasoning": config.model.reasoning,
        "engine": config.engine.model_dump(mode="json", include=set(ENGINE)),
        "agent": [config.agent, manifest.digest(script) if script.is_file() else None],
        "policies": policies,
        "agents": config.agents,
    }


def part_content(config: RunConfig, env: Env) -> dict[str, Any]:
    """Return what a part's sessions are besides its tasks: environment, rewards, limits, sampling, seed."""
    source = inspect.getsourcefile(type(env.unwrapped))
    limits = config.eval.limits(config.rollout)
    added = {"top_k": None, "min_p": 0.0, "repetition_penalty": 1.0}
    narrowed = {name: value for name, default in added.items() if (value := getattr(limits, name)) != default}
    overlong = {} if limits.overlong == "skip" else {"overlong": limits.overlong}
    return {
        "env": config.env.model_dump(mode="json"),
        "version": env.version,
        "source": manifest.digest(Path(source)) if source and Path(source).is_file() else None,
        "agentrl": agentrl.__version__,
        "split": held_out_split(config.eval, env),
        "limits": limits.model_dump(mode="json", include=set(LIMITS)) | narrowed | overlong,
        "rewards": {name: reward.model_dump(mode="json") for name, reward in config.rewards.items()},
        "seed": config.seed,
    }


def tasks_content(tasks: Iterable[Task]) -> str:
    """A digest of the tasks themselves: a file that changed, or a generator."""
    return digest([[task.id, task.environment, task.data] for task in tasks])


def _files(folder: Path) -> dict[str, str]:
    kept = (file for file in sorted(folder.iterdir()) if file.is_file() and file.name != manifest.NAME)
    return {file.name: manifest.digest(file) for file in kept}

"""From a configuration to the parts of a run: what suits an environment, which model, which tokenizer texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert
from agentrl.envs.play import play
from agentrl.envs.registry import find
from agentrl.overrides import merge, read_yaml, spread, validate
from agentrl.rollout.evaluation import SCRIPTED
from agentrl.types import Session

TINY = "tiny"
TINY_RECIPE: Mapping[str, Any] = {
    "algo.lr": 1e-3,
    "rollout.turn_tokens": 64,
    "rollout.session_tokens": 1024,
    "engine.max_batch": 128,
    "trainer.token_budget": 16384,
}
"""What suits a model of half a million parameters; real models keep the defaults."""
TINY_WARM_START = 150
"""Steps of imitation where an environment has an expert and its recipe says nothing else."""
TOKENIZER_EPISODES = 200
"""Demonstrations that the tiny model's tokenizer is made from."""


def complete(tree: Mapping[str, Any]) -> RunConfig:
    """A configuration with what the user left out: a resumed run's own settings, or what suits env and model.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, or contradicts another.
    """
    if tree.get("resume"):
        saved = read_yaml(Path(tree["resume"]) / "config.yaml")
        return validate(merge(saved, tree), RunConfig)
    asked = validate(tree, RunConfig)
    return validate(merge(spread(recipe(asked)), tree), RunConfig)


def recipe(config: RunConfig) -> dict[str, Any]:
    """Settings (dotted keys) that suit this environment with this model; the user's own go first."""
    target = find(config.env.name)
    settings: dict[str, Any] = {}
    model = "" if config.policy in SCRIPTED else config.model.name  # a script is no model, and suits any form of a task
    if model == TINY:
        settings |= TINY_RECIPE
        if isinstance(target, type) and issubclass(target, Env) and has_expert(target):
            settings["warm_start.steps"] = TINY_WARM_START
    suits = getattr(target, "recipe", None)
    return settings | dict(suits(model) if callable(suits) else {})


def quiet() -> None:
    """No progress bars of libraries inside our own display."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def check(config: RunConfig) -> None:
    """Look up what the configuration names; a model that is known is fetched.

    Raises:
        UnknownName: there is none of that name; the message lists what is known.
    """
    from agentrl.train.algorithms import get_algorithm

    get_algorithm(config.algo.name)
    if config.model.name != TINY and not config.resume:
        resolve_model(config)


def demonstration_split(env: Env) -> str:
    """Where demonstrations come from: the environment's `demo` split, else its first."""
    return "demo" if "demo" in env.splits else env.splits[0]


async def build_tiny(make_env: Callable[[], Env], out: Path, seed: int) -> Path:
    """The tiny model for an environment: random weights, and a tokenizer made from its demonstrations."""
    from agentrl.models import tiny

    env = make_env()
    tasks = islice(calls.tasks(env, demonstration_split(env)), TOKENIZER_EPISODES)
    if has_expert(env):
        sessions = [await play(make_env(), task, seed=seed) for task in tasks]
    else:
        sessions = [await _opening(make_env(), task, seed) for task in tasks]
    schemas = env.tools.schemas()
    return tiny.build(out, [tiny.render(session_messages(s), schemas) for s in sessions], seed=seed)


async def _opening(env: Env, task: Any, seed: int) -> Session:
    from agentrl.sessions import tree

    session = Session("opening", task)
    for message in await calls.reset(env, task, seed=seed):
        tree.add(session, session.nodes[-1].id if session.nodes else None, message, [])
    await calls.close(env)
    return session


def session_messages(session: Session) -> list[dict[str, Any]]:
    """A session's messages as plain data."""
    return [node.message.model_dump(exclude_none=True) for node in session.nodes]


def resolve_model(config: RunConfig) -> Path:
    """The folder of the model that a run starts from.

    Raises:
        UnknownName: no such model; the message lists what is known.
    """
    from agentrl import models

    return models.resolve(config.model.name)

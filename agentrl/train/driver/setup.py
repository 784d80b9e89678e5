"""A run's settings, completed by defaults for its environment and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.config import AlgoConfig, RunConfig
from agentrl.config.policies import SCRIPTS
from agentrl.config.secrets import list_hidden
from agentrl.config.sections import named_folder
from agentrl.envs.registry import find, refuse_unknown
from agentrl.errors import ConfigError, EnvError
from agentrl.overrides import Tree, applicable, merge, put, spread, validate, value_at

TINY = "tiny"
ADAPTERS_RATE, FULL_RANK = 10, 16
"""An adapter's learning rate over the whole model's, and the least rank that has it."""
TINY_BUDGET = 2048
"""Tokens of a forest of the tiny model: a step has several, which are computed side by side where cores are free.

On one core alone the products take as long; what forests share is computed once in each, 2 % of the tokens of
`calculator`.
"""
TINY_RECIPE: Mapping[str, Any] = {
    "steps": 40,
    "algo.lr": 1e-3,
    "algo.minibatches": 4,
    "algo.schedule": "linear",
    "algo.warmup_steps": 4,
    "algo.kl_coef": 0.02,
    "rollout.turn_tokens": 64,
    "rollout.session_tokens": 1024,
    "engine.max_batch": 128,
    "trainer.token_budget": TINY_BUDGET,
}
"""Settings for a model of half a million parameters; real models keep the defaults."""
TINY_WARM_START = 150
"""Steps of imitation where an environment has an expert or a demonstrator and its recipe says nothing else."""


def complete(tree: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> RunConfig:
    """Complete a configuration: with a resumed run's own settings, or with defaults for this env and model.

    Args:
        tree: settings.
        given: those of them that are refused where they have no effect; None: all.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, contradicts another, or has no effect.
    """
    config, recipe = _complete(tree)  # a wrong setting is answered before what follows is loaded
    from agentrl.train.plan.unused import refuse_unused

    refuse_unused(config, tree if given is None else given, recipe)
    return config


def _complete(tree: Mapping[str, Any]) -> tuple[RunConfig, Tree]:
    """The completed configuration, and the defaults that are a recipe's."""
    if (run := named_folder(tree, "resume")) is not None:
        from agentrl.train.driver.resuming import read_settings
        from agentrl.train.record import kept_code
        from agentrl.train.record.remote_copy import download_resumed

        tree = download_resumed({**tree, "resume": run})
        saved = kept_code.usable(Path(tree["resume"]), read_settings(Path(tree["resume"]), "resume"))
        if again := tree.get("rerun") or saved.get("rerun"):
            raise ConfigError(f"resume={tree['resume']}: a rerun can't be resumed; begin it again: rerun={again}")
        tree = merge(_of_policies(saved, tree), tree)
        return validate(_check_secrets(merge(applicable(saved, tree), tree)), RunConfig), {}
    if (run := named_folder(tree, "rerun")) is not None:
        from agentrl.train.record import recording

        saved = recording.settings(Path(run))
        return validate(_check_secrets(merge(applicable(saved, tree), tree)), RunConfig), {}
    if tree.get("data") is not None:
        recipe = _data_recipe(tree)
        settings = merge(recipe, tree)
        if value_at(recipe, "algo.lr") is None:  # the tiny model's own, which an adapter of it has as well
            settings = _at_adapters_rates(settings, tree)
        return validate(_check_secrets(settings), RunConfig), recipe
    if "env" not in tree:
        validate(tree, RunConfig)  # which says so, beside what else is wrong
    if isinstance(env := tree["env"], str):
        find(env)  # a wrong name is answered before plug-ins are loaded
    named = {key: tree[key] for key in ("env", "model", "policy") if key in tree}
    known = validate(named, RunConfig)
    refuse_unknown(known.env.name, known.env.kwargs)
    suits = _recipe(known.env.name, "" if known.policy in SCRIPTS else known.model.name)
    try:
        validate(merge(suits, named), RunConfig)
    except ConfigError as error:
        raise EnvError(f"the recipe of environment {named['env']!r}: {error}") from None
    settings = _in_parts(merge(applicable(suits, tree), tree), tree)
    return validate(_check_secrets(_at_adapters_rates(settings, tree)), RunConfig), suits


def _of_policies(saved: Mapping[str, Any], tree: Mapping[str, Any]) -> Tree:
    """The settings of `algo` that a resumed run is given, for policies whose own differs by the learning rate alone.

    `_at_adapters_rates` wrote that down when the run began: what reaches the main policy's algorithm reaches theirs.
    """
    more: Tree = {}
    asked = {key: value for key, value in _section(tree.get("algo")).items() if key not in ("lr", "name")}
    for name, own in (saved.get("policies") or {}).items() if asked else ():
        algo = own.get("algo") if isinstance(own, Mapping) else None
        if algo and algo == {**_section(saved.get("algo")), "lr": algo.get("lr")}:
            put(more, f"policies.{name}.algo", asked)
    return more


def _data_recipe(tree: Mapping[str, Any]) -> Tree:
    """Default settings of a run that reads its sessions: supervised learning; the tiny model's own learning rate."""
    model = tree.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    tiny = {"algo.lr": 3e-3, "algo.warmup_steps": 4, "trainer.token_budget": TINY_BUDGET}
    small = tiny if name in (None, TINY) else {}
    chosen = tree.get("algo")
    named = isinstance(chosen, str) or (isinstance(chosen, Mapping) and "name" in chosen)
    return spread(small | ({} if named else {"algo.name": "sft"}))


def _in_parts(settings: Tree, given: Mapping[str, Any]) -> Tree:
    """The settings, with no more of a recipe's minibatches than a step's groups and the trainer allow."""
    parts, groups = value_at(settings, "algo.minibatches"), value_at(settings, "rollout.groups_per_step")
    if not isinstance(parts, int) or value_at(given, "algo.minibatches") is not None:
        return settings
    if isinstance(groups, int):
        parts = min(parts, max(groups, 1))
    chosen = settings.get("trainer")
    trainer = chosen.get("name") if isinstance(chosen, Mapping) else chosen
    if isinstance(trainer, str) and not _takes_minibatches(trainer):
        parts = 1
    return merge(settings, {"algo": {"minibatches": parts}})


def _at_adapters_rates(settings: Tree, given: Mapping[str, Any]) -> Tree:
    """The settings, with each adapter's learning rate where none is given: ten times the whole model's.

    The optimum over tasks (J. Schulman and Thinking Machines Lab, "LoRA Without Regret", 2025). A rank below 16 has
    that times the root of rank / 16: at a scale of alpha / rank, an update of AdamW changes a layer's weights by a norm
    that goes with 1 / root of the rank, and rank 1 learned slower with ten times (docs/benchmarks.md). A policy with
    an adapter, or a whole model, in place of the main one's has the rate of its own.
    """
    usual, lora, policies = AlgoConfig().lr, settings.get("lora"), settings.get("policies")
    rate = value_at(settings, "algo.lr") if value_at(settings, "algo.lr") is not None else usual
    free = value_at(given, "algo.lr") is None
    more: Tree = {}
    try:
        if free and _adapters_factor(lora) != 1:
            more = {"algo": {"lr": _adapters_factor(lora) * float(rate)}}
        for name, own in policies.items() if isinstance(policies, Mapping) else ():
            if not isinstance(own, Mapping):
                continue
            algo, factor = own.get("algo"), _adapters_factor(own.get("lora") or lora)
            if algo is None and free and factor != _adapters_factor(lora):
                put(more, f"policies.{name}.algo", _section(settings.get("algo")) | {"lr": factor * float(rate)})
            elif algo is not None and factor != 1 and _section(algo).get("lr") is None:
                put(more, f"policies.{name}.algo", _section(algo) | {"lr": factor * usual})
    except (TypeError, ValueError):
        return settings  # no number, as the validation says
    return merge(settings, more)


def _adapters_factor(lora: Any) -> float:
    """Return what an adapter's rate is of the whole model's; 1 where there is none."""
    if not isinstance(lora, Mapping) or not (lora.get("rank") or lora.get("adapter")):
        return 1.0
    return ADAPTERS_RATE * min(1.0, math.sqrt(int(lora.get("rank") or FULL_RANK) / FULL_RANK))


def _section(value: Any) -> dict[str, Any]:
    """Return a section that may be given by its name alone."""
    return dict(value) if isinstance(value, Mapping) else {} if value is None else {"name": value}


def _takes_minibatches(trainer: str) -> bool:
    from agentrl.train.trainers import TRAINERS

    return TRAINERS.find(trainer).takes_minibatches


def _check_secrets(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings, once no secret is missing that a config.yaml does not keep."""
    if names := list(list_hidden(tree)):
        given = " ".join(f"{name}=…" for name in names)
        raise ConfigError(f"{', '.join(names)}: secrets are not kept in config.yaml; give them again: {given}")
    return tree


def _recipe(env: str, model: str) -> Tree:
    """Default settings for an environment with a model, '' for a script, which plays any form of a task.

    The user's own override them.
    """
    from agentrl.envs.base import Env, has_demonstrator

    target = find(env)
    settings: dict[str, Any] = {}
    if model == TINY:
        settings |= TINY_RECIPE
        if isinstance(target, type) and issubclass(target, Env) and has_demonstrator(target):
            settings["warm_start.steps"] = TINY_WARM_START
    suits = getattr(target, "recipe", None)
    own = _read_recipe(env, suits, model) if callable(suits) else {}
    return _in_parts(merge(spread(settings), spread(own)), spread(own))


def _read_recipe(env: str, suits: Callable[[str], Any], model: str) -> dict[str, Any]:
    """The environment's own recipe."""
    try:
        settings = suits(model)
    except Exception as error:
        raise EnvError(f"the recipe of environment {env!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(settings, Mapping):
        raise EnvError(f"the recipe of environment {env!r} is {settings!r}, not a mapping of settings")
    return {str(key): value for key, value in settings.items()}


def quiet() -> None:
    """Turn off the libraries' progress bars, which would break our display."""
    from transformers.utils import logging

    logging.disable_progress_bar()

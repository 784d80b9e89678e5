"""Checks of the trainers of all policies that learn: settings, what critics read, how ranks share models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config import MODEL, PAST, START, ModelConfig, Policies
from agentrl.config.learners import Learners, named_as_given
from agentrl.config.policies import list_players
from agentrl.envs.base import Env, has_critic_view
from agentrl.envs.data.mixture import list_mixed
from agentrl.errors import ConfigError
from agentrl.models.folders import model_settings
from agentrl.models.registry import TINY, model_folder
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.plan.dry_run import model_shape
from agentrl.train.trainers import TRAINERS, check_trainer
from agentrl.types import MAIN


def check_trainers(learners: Learners, policies: Policies) -> dict[str, Algorithm]:
    """Return the policies' algorithms; refuse settings that no trainer can be made from."""
    found = {}
    for name, own in learners.items():
        with named_as_given(policies, name):
            found[name] = make_algorithm(own.algo)
            check_trainer(own.trainer, found[name], own.lora)
            TRAINERS.find(own.trainer.name).numbers(own.trainer, found[name])
    return found


def check_layouts(learners: Learners, policies: Policies, begun: str | None) -> None:
    """Refuse ranks that can't share a policy's model, whose folder is there, however many GPUs there are.

    Of a run that has `begun`, and is resumed or repeated, its own copy of the model counts.
    """
    for name, own in learners.items():
        plugin = TRAINERS.find(own.trainer.name)
        if not plugin.has_ranks:
            continue
        starts = name == MAIN or own.model.name == START
        model = _first_model(learners[MAIN].model, begun) if starts else model_settings(model_folder(own.model))
        if model is not None:
            with named_as_given(policies, name):
                plugin.split(own.trainer, model, 0)


def _first_model(model: ModelConfig, begun: str | None) -> Any:
    """The settings of the model that a run starts from; None where its own copy, from which it goes on, is damaged."""
    if begun:
        folder = Path(begun) / "model"
        return model_settings(folder) if (folder / "config.json").is_file() else None
    return model_shape(model) if model.name == TINY else model_settings(model_folder(model))


def late_rates(learners: Learners, steps_of: Callable[[str], int]) -> Iterator[str]:
    """Yield a sentence for each warm-up, of a learning rate or a critic, that lasts as long as the run."""
    for name, own in learners.items():
        steps, algo, where = steps_of(name), own.algo, "" if name == MAIN else f"{name}: "
        if algo.warmup_steps >= steps:
            last = algo.lr * steps / (algo.warmup_steps + 1)
            yield (
                f"{where}algo.warmup_steps={algo.warmup_steps} in {steps} steps: the learning rate ends at {last:.3g} "
                f"and never is algo.lr={algo.lr:g}"
            )
        if (critics := getattr(algo, "value_warmup", 0)) >= steps:
            yield f"{where}algo.value_warmup={critics} in {steps} steps: the critic alone learns, and no weight moves"


def check_view(algorithm: Algorithm, env: Env) -> None:
    """Refuse a critic that is to see what no environment tells it."""
    if not algorithm.needs.critic or not (numbers := algorithm.critic_config.value_view):
        return
    for part in list_mixed(env).values():
        if not has_critic_view(part):
            name = type(part.unwrapped).__name__
            raise ConfigError(
                f"algo.value_view={numbers} needs an environment with critic_view(agent); {name} has none"
            )


def check_joint_path(
    algorithm: Algorithm, env: Env, forks: str, program: str | None, agents: Mapping[str, str], policies: Policies
) -> None:
    """Refuse a critic that is to read what all agents said where there is one, or one whose turns have no tokens.

    `forks`: the rule by which sessions fork; `program`: what acts in the model's place.
    """
    if not algorithm.reads_joint_paths:
        return
    where, instead = "algo.value_path=joint", "use algo.value_path=agent"
    if program is not None:
        raise ConfigError(f"{where} reads an environment's agents, and agent={program!r} is a program: {instead}")
    if forks != "none":
        raise ConfigError(f"{where} reads a session in order, and rollout.branch={forks} forks it: {instead}")
    for part in list_mixed(env).values():
        if len(part.agents) < 2:
            raise ConfigError(f"{where} reads several agents' paths, and {type(part.unwrapped).__name__} has one agent")
    for agent, policy in agents.items():
        for name in list_players(policies, policy):
            if name != MAIN and policies[name].name not in (MODEL, PAST):
                raise ConfigError(
                    f"{where} reads tokens, and policies.{name}={policies[name].name}, which plays {agent}, has "
                    f"none: {instead}, with algo.value_view where the environment has critic_view(agent)"
                )

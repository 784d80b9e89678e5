"""Checks before a run that its critic is told what it is to read."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.config import MODEL, PAST, Policies
from agentrl.config.policies import list_players
from agentrl.envs.base import Env, has_critic_view
from agentrl.envs.data.mixture import list_mixed
from agentrl.errors import ConfigError
from agentrl.train.algorithms import Algorithm
from agentrl.types import MAIN


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

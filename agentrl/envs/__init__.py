"""Environments: the worlds an agent acts in."""

from agentrl.envs.base import Env, has_demonstrator, has_expert, has_fork, has_state, reward
from agentrl.envs.calls import Rewards, compute_rewards
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.envs.registry import EnvInfo, describe, factory, find, list_envs, make, register
from agentrl.envs.state import EnvState

__all__ = [
    "FixtureCredit",
    "Env",
    "EnvInfo",
    "EnvState",
    "Fixture",
    "Rewards",
    "compute_rewards",
    "describe",
    "factory",
    "find",
    "has_demonstrator",
    "has_expert",
    "has_fork",
    "has_state",
    "list_envs",
    "make",
    "register",
    "reward",
]

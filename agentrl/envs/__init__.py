"""Environments: the worlds an agent acts in."""

from agentrl.envs.base import Env, has_demonstrator, has_expert, reward
from agentrl.envs.calls import Rewards, compute_rewards
from agentrl.envs.registry import EnvInfo, describe, factory, find, list_envs, make, register

__all__ = [
    "Env",
    "EnvInfo",
    "Rewards",
    "compute_rewards",
    "describe",
    "factory",
    "find",
    "has_demonstrator",
    "has_expert",
    "list_envs",
    "make",
    "register",
    "reward",
]

"""What `agentrl envs` measures: the rewards of the expert, of a random agent, and of one that says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert
from agentrl.envs.episode import ScriptedPolicy, expert_policy, noop_policy, play
from agentrl.envs.registry import factory
from agentrl.envs.samples import random_policy
from agentrl.types import Session

MAX_TURNS = 200
"""Turns of a random and of a silent agent; the expert's are the environment's own."""


@dataclass(frozen=True)
class Reference:
    """What one scripted agent got.

    Attributes:
        agent: which.
        reward: the mean over its episodes; None where none was rewarded.
        turns: the mean number of its turns.
        tool_errors: the share of its tool calls that failed.
        episodes: how many were played.
    """

    agent: str
    reward: float | None
    turns: float
    tool_errors: float
    episodes: int


def references(name: str, options: dict[str, Any], n: int, split: str = "eval", seed: int = 0) -> list[Reference]:
    """Play the first tasks of a split with each scripted agent.

    Args:
        name: the environment's.
        options: its constructor's.
        n: how many tasks.
        split: of which split; the environment's first one where it has no such.
        seed: the episodes', and the random agent's.

    Raises:
        AgentRLError: the environment can't be made, or failed.
    """
    make = factory(name, **options)
    return asyncio.run(_play_all(make, n, split, seed))


async def _play_all(make: Callable[[], Env], n: int, split: str, seed: int) -> list[Reference]:
    env = make()
    tasks = list(islice(calls.tasks(env, split if split in env.splits else env.splits[0]), n))
    agents: dict[str, ScriptedPolicy] = {"expert": expert_policy} if has_expert(env) else {}
    agents.update({"random": random_policy(seed), "silent": noop_policy})
    found = []
    for agent, policy in agents.items():
        limit = None if agent == "expert" else MAX_TURNS
        sessions = [await play(make(), task, policy, seed=seed, max_turns=limit) for task in tasks]
        found.append(_summary(agent, sessions))
    return found


def _summary(agent: str, sessions: list[Session]) -> Reference:
    rewards = [session.score for session in sessions if session.score is not None]
    asked = sum(session.counters.get("tool_calls", 0) for session in sessions)
    failed = sum(session.counters.get("tool_errors", 0) for session in sessions)
    turns = fmean(session.turns for session in sessions) if sessions else 0.0
    return Reference(agent, fmean(rewards) if rewards else None, turns, failed / max(asked, 1), len(sessions))

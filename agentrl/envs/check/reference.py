"""Measurements of `agentrl envs`: the scores of the expert and of six agents that understand nothing (`trivial`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert
from agentrl.envs.check.trivial import AGENTS, RANDOM, SILENT, Known, play_trivial, score
from agentrl.envs.episode import play
from agentrl.envs.registry import EnvFactory, factory
from agentrl.types import Session

EXPERT = "expert"
FEW = (RANDOM, SILENT)
"""Those that the list of all environments shows."""


@dataclass(frozen=True)
class Reference:
    """One scripted agent's scores.

    Attributes:
        reward: the mean score over its episodes and, of several agents, over their places; None without any.
        turns: the mean number of turns in its episodes.
        tool_errors: the share of tool calls that failed.
        episodes: how many were played.
    """

    agent: str
    reward: float | None
    turns: float
    tool_errors: float
    episodes: int

    @property
    def short(self) -> str:
        """The agent's name in a table."""
        return self.agent.removesuffix(" agent")


def references(
    name: str | EnvFactory, options: dict[str, Any], n: int, split: str = "eval", agents: Sequence[str] = AGENTS
) -> list[Reference]:
    """Play the first tasks of a split with each scripted agent; beside a trivial one the expert plays the others.

    Args:
        name: the environment's.
        options: its constructor's.
        n: how many tasks.
        split: of which split; the environment's first one where it has no such.
        agents: which of the trivial agents.

    Raises:
        AgentRLError: the environment can't be made, or failed.
    """
    return asyncio.run(_play_all(factory(name, **options), n, split, agents))


async def _play_all(make: Callable[[], Env], n: int, split: str, agents: Sequence[str]) -> list[Reference]:
    env = make()
    tasks = list(islice(calls.tasks(env, split if split in env.splits else env.splits[0]), n))
    known, found = Known(), list[Reference]()
    if has_expert(env):
        sessions = [await play(make(), task) for task in tasks]
        for session in sessions:
            known.add(session)
        found.append(_summary(EXPERT, [(session, agent) for session in sessions for agent in env.agents]))
    for name in agents:
        played = [
            (await play_trivial(make(), task, name, agent, known), agent) for task in tasks for agent in env.agents
        ]
        found.append(_summary(name, played))
    return found


def _summary(agent: str, played: Sequence[tuple[Session, str]]) -> Reference:
    sessions = [session for session, _ in played]
    given = any(session.score is not None for session in sessions)
    asked = sum(session.counters.get("tool_calls", 0) for session in sessions)
    failed = sum(session.counters.get("tool_errors", 0) for session in sessions)
    turns = fmean(session.turns for session in sessions) if sessions else 0.0
    reward = fmean(score(session, own) for session, own in played) if given else None
    return Reference(agent, reward, turns, failed / max(asked, 1), len(sessions))

"""Rules about how an episode begins and ends: without a seed, cut off in its first turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check import places
from agentrl.envs.check.subject import Subject
from agentrl.envs.episode import play
from agentrl.errors import AgentRLError, TokenBudgetExceeded
from agentrl.types import Message


async def unseeded(subject: Subject) -> AsyncIterator[str]:
    """An episode can begin without a seed."""
    env, task = subject.make(), subject.tasks[0]
    subject.label(task, "agent of an episode without a seed")
    try:
        await calls.openings(env, task, seed=None)
    except AgentRLError as error:
        if all(str(error) != str(episode.error) for episode in subject.all_played()):
            yield f"task {task.id!r}: without a seed, {error}{_at(error)}"
    finally:
        await calls.close(env)


async def cut_off(subject: Subject) -> AsyncIterator[str]:
    """A session that is cut off in its first turn can be rewarded."""
    task = subject.tasks[0]
    subject.label(task, "agent that is cut off at once")
    try:
        await play(subject.make(), task, _cut_off_at_once, seed=subject.seed)
    except AgentRLError as error:
        if all(str(error) != str(episode.error) for episode in subject.all_played()):
            yield f"task {task.id!r}, cut off in its first turn: {error}{_at(error)}"


def _cut_off_at_once(env: Env, messages: Sequence[Message]) -> Message:
    raise TokenBudgetExceeded("the session's tokens are used up")


def _at(error: AgentRLError) -> str:
    place = places.of_error(error.__cause__ or error)
    return f", at {place}" if place else ""

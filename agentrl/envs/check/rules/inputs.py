"""Rules about what an episode may not change: its task, the agent's messages, its own earlier ones, its tools."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentrl.envs import calls
from agentrl.envs.check.subject import Episode, Subject
from agentrl.envs.check.walk import Walk


async def task_kept(subject: Subject) -> AsyncIterator[str]:
    """An episode does not change its task."""
    async for episode, walk in _walks(subject):
        if walk.task:
            yield f"{episode.name}: the task was changed {walk.task}"


async def messages_kept(subject: Subject) -> AsyncIterator[str]:
    """`step` changes neither the agent's message nor messages that were sent before."""
    async for episode, walk in _walks(subject):
        if walk.given:
            yield f"{episode.name}: step changed the agent's message {walk.given}"
        elif walk.sent:
            yield f"{episode.name}: step changed a message that was sent before, {walk.sent}"


async def tools_kept(subject: Subject) -> AsyncIterator[str]:
    """The tools stay the same once an episode has begun."""
    async for episode, walk in _walks(subject):
        if walk.tools:
            yield f"{episode.name}: the tools changed {walk.tools}"


async def _walks(subject: Subject) -> AsyncIterator[tuple[Episode, Walk]]:
    """The walk through the default agent's episode of the first task; nothing where it failed, or had sub-agents.

    Those write their messages within a step, and the steps of a walk have none.
    """
    episode = await subject.episode(subject.tasks[0], subject.default)
    if episode.session is None or any(node.spawned for node in episode.session.nodes):
        return
    if subject.walk is None:
        subject.walk, env = Walk(), subject.make()
        subject.label(episode.task, f"{episode.agent} once more")
        try:
            await subject.walk.through(
                env, episode.said, episode.session, subject.untouched(episode.task), subject.seed
            )
        finally:
            await calls.close(env)
    yield episode, subject.walk

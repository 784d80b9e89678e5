"""One session's life between environment and actor, with every way it can end.

The loop below is the whole algorithm: the actor speaks, the environment answers, until one of them is done or
a limit is reached. What ends it otherwise is an error that says who is to blame, and the blame decides the
status: the agent's is AGENT_ERROR and may still be rewarded; ours is INFRA_ERROR, which gets no reward at all;
the user's (a bug in the environment) stops the run, since drawing again would meet it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.errors import AgentRLError, Blame, DeadlineExceeded
from agentrl.rollout.seeds import derive
from agentrl.sessions import tree
from agentrl.sessions.conversation import Conversation, OutOfRoom
from agentrl.types import FinishReason, Message, Node, Sampling, Session, Status, StepResult
from agentrl.untrusted import safe_text


class Actor(Protocol):
    """Whoever speaks for the agent."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Add the next assistant node to the conversation and return it.

        Raises:
            OutOfRoom: a token budget leaves no room for a turn.
        """
        ...


class ModelActor:
    """A language model, asked through the conversation's engine."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Draw a turn with a seed of its own."""
        session = conversation.session
        seed = derive(session.seed, "sample", session.sample, "turn", turn)
        return await conversation.ask(replace(self.sampling, seed=seed), deadline)


class ExpertActor:
    """The environment's own expert."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Say what the expert says."""
        return conversation.demonstrate(await calls.expert(env, _said(conversation)))


class Demonstrator:
    """Whoever the environment lets a warm start imitate."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Say what the demonstrator says."""
        return conversation.demonstrate(await calls.demonstrate(env, _said(conversation)))


class NoopActor:
    """Says nothing, once: the floor that every environment must not reward."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Say nothing."""
        return conversation.demonstrate(Message(role="assistant", content=""))


def _said(conversation: Conversation) -> list[Message]:
    head = conversation.head
    return [node.message for node in tree.path(conversation.session, head.id if head else None)]


async def run_episode(env: Env, conversation: Conversation, actor: Actor, limits: RolloutConfig) -> Session:
    """Play one session to its end and reward it; the environment is closed whatever happens.

    Returns:
        The conversation's session, with status, rewards, counters and timings filled in.

    Raises:
        AgentRLError: a failure that the user must mend (an environment's bug, a wrong setting).
    """
    session = conversation.session
    env.tools.timeout = limits.tool_timeout
    try:
        with _timed(session, "total"):
            try:
                async with asyncio.timeout(limits.timeout):
                    session.status = await _converse(env, conversation, actor, limits)
            except AgentRLError as error:
                failed(session, error)
            except TimeoutError:
                session.status, session.error = Status.TRUNCATED, f"the session took longer than {limits.timeout:g} s"
        _count_tools(env, session)
        if session.status is not Status.INFRA_ERROR:
            await give_rewards(env, session)
    finally:
        await calls.close(env)
    return session


async def _converse(env: Env, conversation: Conversation, actor: Actor, limits: RolloutConfig) -> Status:
    session = conversation.session
    with _timed(session, "env"):
        conversation.add(await calls.reset(env, session.task, seed=session.seed))
    turns = min(limit for limit in (limits.max_turns, env.max_turns, 10_000) if limit is not None)
    for turn in range(turns):
        deadline = time.monotonic() + limits.turn_timeout
        try:
            node = await actor.act(conversation, env, turn, deadline)
        except OutOfRoom as full:
            return _cut(session, str(full).partition(": ")[2])
        if node.finish_reason is FinishReason.LENGTH:
            return _cut(session, f"a turn was cut off by its token limit (rollout.turn_tokens={limits.turn_tokens})")
        with _timed(session, "env"):
            result = await _answer(env, node.message, deadline)
        if result.reward is not None:
            node.reward = result.reward
        if result.messages:
            conversation.add(result.messages)
        if result.terminated or result.truncated:
            return Status.COMPLETED if result.terminated else _cut(session, "the environment cut it off")
    return _cut(session, f"all {turns} turns were taken (max_turns)")


def _cut(session: Session, why: str) -> Status:
    session.error = why
    return Status.TRUNCATED


async def _answer(env: Env, message: Message, deadline: float) -> StepResult:
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await calls.step(env, message)
    except AgentRLError:
        raise
    except TimeoutError:
        name = type(env.unwrapped).__name__
        raise DeadlineExceeded(f"{name}.step had not answered when rollout.turn_timeout was over") from None


async def give_rewards(env: Env, session: Session) -> None:
    """Run the environment's rewards on a finished session; one that fails for our reasons makes it INFRA_ERROR."""
    try:
        with _timed(session, "reward"):
            rewards = await calls.compute_rewards(env, session)
    except AgentRLError as error:
        failed(session, error)
        return
    session.rewards, session.reward = rewards.values, rewards.total


def failed(session: Session, error: AgentRLError) -> None:
    """Note in the session who is to blame for its end; what the user must mend is raised again."""
    if error.blame is Blame.USER:
        raise error
    session.status = Status.AGENT_ERROR if error.blame is Blame.AGENT else Status.INFRA_ERROR
    session.error = safe_text(f"{type(error).__name__}: {error}")


def _count_tools(env: Env, session: Session) -> None:
    session.count("tool_calls", env.tools.calls)
    session.count("tool_errors", sum(env.tools.failures.values()))
    for kind, number in env.tools.failures.items():
        session.count(f"tool_errors/{kind.value}", number)


@contextmanager
def _timed(session: Session, name: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        session.timings[name] = session.timings.get(name, 0.0) + time.monotonic() - began

"""Playing an episode with messages alone: no model, no tokens.

It serves `check_env`, demonstrations, the expert and no-op baselines, and anyone who wants to walk through an
environment by hand. The session it returns is a real one whose nodes hold no tokens, so nothing can be
trained on it by mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.errors import AgentRLError, Blame
from agentrl.types import Message, Node, Session, Status, Task

Policy = Callable[[Env, Sequence[Message]], Message | Awaitable[Message]]
"""Given the environment and the conversation so far, the next assistant message."""
MAX_TURNS = 100
"""The limit where neither the caller nor the environment has one."""


async def expert_policy(env: Env, messages: Sequence[Message]) -> Message:
    """Says what the environment's own expert says."""
    return await calls.expert(env, messages)


async def demonstrator_policy(env: Env, messages: Sequence[Message]) -> Message:
    """Says what a warm start would imitate."""
    return await calls.demonstrate(env, messages)


def noop_policy(env: Env, messages: Sequence[Message]) -> Message:
    """Says nothing."""
    return Message(role="assistant", content="")


async def play(
    env: Env,
    task: Task,
    policy: Policy = expert_policy,
    *,
    seed: int = 0,
    max_turns: int | None = None,
    close: bool = True,
) -> Session:
    """Play one episode to its end and reward it.

    Args:
        env: a fresh instance.
        task: what to play.
        policy: who speaks.
        seed: the episode's randomness.
        max_turns: assistant turns; the environment's own limit applies as well.
        close: whether to close the environment afterwards.

    Returns:
        The session; its nodes hold messages and step rewards, and no tokens.

    Raises:
        EnvError: the environment's code failed.
        InfraError: our machinery failed.
    """
    session = Session(id=f"play-{task.id}-{seed}", task=task, seed=seed)
    limits = [limit for limit in (max_turns, env.max_turns) if limit is not None]
    try:
        for message in await calls.reset(env, task, seed=seed):
            _append(session, message)
        session.status = await _turns(env, session, policy, min(limits, default=MAX_TURNS))
        rewards = await calls.compute_rewards(env, session)
        session.rewards, session.reward = rewards.values, rewards.total
        for kind, number in env.tools.failures.items():
            session.count(f"tool_errors/{kind}", number)
        session.count("tool_calls", env.tools.calls)
    finally:
        if close:
            await calls.close(env)
    return session


def record(session: Session) -> list[Any]:
    """What two equal episodes have in common: messages, step rewards, final rewards, status."""
    said = [(node.message.model_dump(exclude_none=True), node.reward) for node in session.nodes]
    return [*said, session.rewards, session.status.value]


async def _turns(env: Env, session: Session, policy: Policy, limit: int) -> Status:
    for _ in range(limit):
        try:
            said = policy(env, session.messages)
            message = await said if inspect.isawaitable(said) else said
        except AgentRLError as error:
            if error.blame is not Blame.AGENT:
                raise
            session.error = str(error)
            return Status.AGENT_ERROR
        node = _append(session, message)
        session.count("turns")
        result = await calls.step(env, message)
        node.reward = result.reward
        for answer in result.messages:
            _append(session, answer)
        session.info.update(result.info)
        if result.terminated or result.truncated:
            return Status.COMPLETED if result.terminated else Status.TRUNCATED
    return Status.TRUNCATED


def _append(session: Session, message: Message) -> Node:
    parent = session.nodes[-1].id if session.nodes else None
    node = Node(len(session.nodes), parent, message, token_ids=[], trainable=[], logprobs=[])
    session.nodes.append(node)
    return node

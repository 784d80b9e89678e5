"""The end of an episode in its session: rewards, status and error, counts of tool calls, timings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import fmean
from types import TracebackType
from typing import Any, TypeVar

from agentrl import tracing
from agentrl.common.foreign_errors import words
from agentrl.common.untrusted import safe_text
from agentrl.config.secrets import scrub
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.errors import (
    AgentRLError,
    Blame,
    DeadlineExceeded,
    EngineError,
    EnvError,
    InfraError,
    InvalidNumber,
    InvalidReward,
)
from agentrl.types import AGENT, Session, Status

INVALID_REWARDS, INVALID_VIEWS = "invalid_rewards", "invalid_views"
"""Count, in a session, that a reward was no finite number in its range, and that a critic's view was none."""
INVALID = {INVALID_REWARDS: "with an invalid reward", INVALID_VIEWS: "with an invalid critic_view"}
"""In words. Such a session ends as INFRA_ERROR, and is not played again: it would be given the same numbers."""
IN_TOOLS = "infra_in_tools"
"""Counts, in a session, that the infrastructure failed inside a tool call or another answer to a turn."""
TOOL_FAULTS = "tool_faults"
"""In a session: how many attempts before it failed so, while other groups' tools answered
(`rollout.episodes.tool_faults`)."""
T = TypeVar("T")


async def give_rewards(
    env: Env,
    session: Session,
    agents: Sequence[str] = (AGENT,),
    seen: Session | None = None,
    seconds: float | None = None,
) -> None:
    """Run the environment's rewards on a finished session; an infrastructure failure makes it INFRA_ERROR.

    Rewards that have not ended in time are such a failure.

    Args:
        env: the episode's environment.
        session: the episode's session.
        agents: the agents over whose rewards the session's own reward is the mean.
        seen: what the rewards are computed of; None is the session.
        seconds: that all of them may take together, the session's limit anew; None where each has its own.
    """
    try:
        with add_timing(session, "reward"):
            rewards = await within(seconds, calls.compute_rewards(env, session if seen is None else seen))
    except AgentRLError as error:
        record_failure(session, error)
        return
    except TimeoutError:
        name = type(env.unwrapped).__name__
        record_failure(
            session, DeadlineExceeded(f"the rewards of {name} took longer than rollout.timeout={seconds:g} s")
        )
        return
    set_rewards(session, rewards, agents)


def set_rewards(session: Session, rewards: calls.Rewards, agents: Sequence[str]) -> None:
    """Set the session's rewards; its own is the mean of these agents' where each has one."""
    session.rewards, session.reward = rewards.values, rewards.total
    if rewards.by_agent:
        session.agent_rewards = {agent: rewards.by_agent[agent] for agent in agents}
        session.partner_rewards = {agent: own for agent, own in rewards.by_agent.items() if agent not in agents}
        given = [reward for reward in session.agent_rewards.values() if reward is not None]
        session.reward = fmean(given) if given else None


def add_rewards(session: Session, rewards: Mapping[str, float]) -> None:
    """Add step rewards of the other agents, each to the agent's newest turn; EnvError where one has had no turn yet."""
    for agent, reward in rewards.items():
        own = (node for node in reversed(session.nodes) if node.agent == agent and node.message.role == "assistant")
        if (newest := next(own, None)) is None:
            raise EnvError(f"step gave {agent!r} the reward {reward}, but it has had no turn yet")
        newest.reward = (newest.reward or 0.0) + reward


def record_failure(session: Session, error: AgentRLError) -> None:
    """Set the session's status and error by the error's blame; an error of the user is raised again.

    An infrastructure error inside a tool call is the agent's where `TOOL_FAULTS` says that it is so each time.
    """
    if error.blame is Blame.USER:
        raise error
    if isinstance(error, InvalidNumber):
        session.count(INVALID_REWARDS if isinstance(error, InvalidReward) else INVALID_VIEWS)
    of_agent = error.blame is Blame.AGENT or {IN_TOOLS, TOOL_FAULTS} <= session.counters.keys()
    session.status = Status.AGENT_ERROR if of_agent else Status.INFRA_ERROR
    session.error = error_text(error)


def error_text(error: BaseException) -> str:
    """An error as a session keeps it: text that can be stored, without secrets."""
    return safe_text(scrub(words(error)))


def note_answer_failed(session: Session, error: AgentRLError) -> None:
    """Note that the answer to a turn failed, where that is not an engine's fault."""
    if isinstance(error, InfraError) and not isinstance(error, EngineError):
        session.count(IN_TOOLS)


def invalid(session: Session) -> str:
    """The counter in `INVALID` of what ended a session; '' where nothing of the kind did."""
    if session.status is not Status.INFRA_ERROR:
        return ""
    return next((name for name in INVALID if name in session.counters), "")


def count_tools(env: Env, session: Session) -> None:
    """Count, in the session, the environment's tool calls, failed, silent and late ones, and their late effects."""
    session.count("tool_calls", env.tools.calls)
    session.count("tool_errors", sum(env.tools.failures.values()))
    for kind, number in env.tools.failures.items():
        session.count(f"tool_errors/{kind.value}", number)
    if env.tools.silent:
        session.count("tool_silent", env.tools.silent)
    for name, number in (("late_calls", env.tools.effects.outlived), ("late_effects", env.tools.effects.late)):
        if number:
            session.count(name, number)


@contextmanager
def add_timing(session: Session, name: str) -> Iterator[None]:
    """Add the seconds that the block takes to one of the session's timings."""
    began = time.monotonic()
    try:
        yield
    finally:
        session.timings[name] = session.timings.get(name, 0.0) + time.monotonic() - began


class environment_call(AbstractContextManager[dict[str, float]]):
    """The block is a call of the environment; gives its timings (`Node.timings`), complete at the block's end."""

    def __init__(self, session: Session, method: str) -> None:
        self._session, self._method = session, method

    def __enter__(self) -> dict[str, float]:
        self._collected = tracing.collected()
        self._seconds = self._collected.__enter__()
        self._seconds["began"], self._began = tracing.round_seconds(time.time()), time.monotonic()
        self._span = tracing.span("env", method=self._method)
        self._span.__enter__()
        return self._seconds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, trace)
        self._collected.__exit__()
        timings = self._session.timings
        timings["env"] = timings.get("env", 0.0) + time.monotonic() - self._began


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; TimeoutError where it was still waiting after so many seconds, and was cancelled.

    Most environments answer without waiting for anything, and a timer that is set and cancelled would be a seventh of
    such a turn. So the coroutine is begun first, and a timer is set where it waits.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    async with asyncio.timeout(seconds):
        return await _Begun(work, waits_for)


class _Begun(Generator[Any, Any, T]):
    """A coroutine that has begun and waits for something; whoever looks for where a task waits sees the coroutine."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work, self._waits_for = work, [waits_for]

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        return self._waits_for.pop() if self._waits_for else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

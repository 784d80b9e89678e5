"""`EpisodeContext`: what agentrl keeps of an instance and its episode, apart from what the author's class holds.

An author's class may use any attribute names of its own, so none of this lies in fields of `Env`: the drivers of
episodes read and write it here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from agentrl.envs.reward_marks import FinalReward
from agentrl.errors import EnvError, StateUnsupported
from agentrl.tools.sources import NamedSource, OpenTools, close_or_warn
from agentrl.types import Message, Node, Session, Task

Messages = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""The forms of messages that an environment may return: text (a user message), a message, a dict, or a list of them."""
RunSubAgent = Callable[[Messages, Sequence[str], int, str], Awaitable[str]]
"""Runs a sub-agent, given the arguments of `Env.spawn`, and returns its result."""
_CALL = re.compile(r"call_(\d+)")
"""The id of an expert's tool call."""
KEY = "__agentrl_context__"
"""The instance attribute that holds the context."""


@dataclass(frozen=True)
class AddedTools:
    """The tools that one instance was given, and what gives them to another one."""

    sources: Sequence[NamedSource]
    opened: Sequence[OpenTools]

    def refuse_state(self, env: str) -> None:
        """Raise StateUnsupported where a call changed something that no state of the environment `env` has."""
        for source, tools in zip(self.sources, self.opened, strict=True):
            if tools.has_state():
                raise StateUnsupported(f"{env}: tools.{source.name} was called, and its server's state can't be saved")

    async def close(self) -> None:
        pairs = [(source, tools.close) for source, tools in zip(self.sources, self.opened, strict=True)]
        await asyncio.gather(
            *(close_or_warn(f"tools.{source.name}", close) for source, close in pairs if close is not None)
        )


@dataclass
class EpisodeContext:
    """One instance's episode, as its drivers see it.

    Attributes:
        owner: the id of the instance.
        arguments: the constructor's, with which `fork` makes another instance.
        episode: its task and seed; None before it begins.
        played: whether a session of a run is being played in it.
        earned: the reward of the step under way, so far; None where there is none.
        over: whether the step under way has ended the task.
        expert_calls: how many tool calls experts have written.
        sandbox: that of its tools, once one of them needed it.
        answered: the session and the turn that a step answers, while it does.
        run_sub_agent: runs a sub-agent, while a step is under way.
        added_rewards: the run's `rewards.*`.
        group_rewards: those of them that compare a group's sessions.
        added_tools: the run's `tools.*`.
    """

    owner: int
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
    episode: tuple[Task, int | None] | None = None
    played: bool = False
    earned: float | None = None
    over: bool = False
    expert_calls: int = 0
    sandbox: Any = None
    answered: tuple[Session, Node] | None = None
    run_sub_agent: RunSubAgent | None = None
    added_rewards: tuple[FinalReward, ...] = ()
    group_rewards: tuple[FinalReward, ...] = ()
    added_tools: AddedTools | None = None

    def earn(self, reward: float) -> None:
        """Add to the reward of the step under way."""
        self.earned = (self.earned or 0.0) + reward

    def end(self) -> None:
        """Note that the step under way ends the task."""
        self.over = True

    def new_call_id(self) -> str:
        """Return the id of an expert's next tool call."""
        self.expert_calls += 1
        return f"call_{self.expert_calls}"

    def note_expert_turn(self, message: Message) -> None:
        """Count the calls of an expert's turn that was written before the episode was restored."""
        written = (_CALL.fullmatch(call.id) for call in message.tool_calls or ())
        self.expert_calls = max([self.expert_calls, *(int(match[1]) for match in written if match)])

    def collect(self) -> tuple[float | None, bool]:
        """Return what was earned, and whether the task was ended, since the last call."""
        collected = self.earned, self.over
        self.earned, self.over = None, False
        return collected


def context_of(env: object) -> EpisodeContext:
    """Return an instance's context; that of a copy of an instance begins as a copy of the original's."""
    context: EpisodeContext | None = vars(env).get(KEY)
    if context is None or context.owner != id(env):
        context = EpisodeContext(id(env)) if context is None else replace(context, owner=id(env), played=False)
        vars(env)[KEY] = context
    return context


@contextmanager
def alone(env: object) -> Iterator[None]:
    """Within it one session is played in the instance; EnvError where another one is, as in a shared instance."""
    context = context_of(env)
    if context.played:
        raise EnvError(f"one instance of {type(env).__name__} was given to two episodes at once: make one for each")
    context.played = True
    try:
        yield
    finally:
        context.played = False

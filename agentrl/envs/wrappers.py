"""Environments around environments: limits, and a record of the messages.

A wrapper is an environment like any other; it delegates everything and changes one thing. The limits end
an episode as truncated, with `info["limit"]` saying which it was, and keep Gymnasium's distinction: an episode
that reaches its own end in the very step that reaches a limit is terminated.
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import orjson

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.state import resolved
from agentrl.errors import InvalidInput
from agentrl.tools.registry import ToolRegistry
from agentrl.types import Message, StepResult, Task

N = TypeVar("N", int, float)
Opening = list[Message] | dict[str, list[Message]]
"""An episode's opening messages; by agent, where there are several."""
BYTES_PER_TOKEN = 4
"""A common rule of thumb for English, used where no tokenizer is given."""


class Wrapper(Env):
    """Delegates everything to `env`; override what is to differ."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.agents, self.max_turns, self.stop_strings = env.agents, env.max_turns, env.stop_strings
        self.splits, self.return_range = env.splits, env.return_range
        self.version, self.simultaneous = env.version, env.simultaneous

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before __init__: nothing to delegate to
            raise AttributeError(name)
        return getattr(self.env, name)

    @cached_property
    def tools(self) -> ToolRegistry:
        """The wrapped environment's tools."""
        return self.env.tools

    @property
    def unwrapped(self) -> Env:
        """The innermost environment."""
        return self.env.unwrapped

    def tasks(self, split: str = "train") -> Iterable[Task | Mapping[str, Any]]:
        """The wrapped environment's tasks."""
        return self.env.tasks(split)

    def chance_of(self, tasks: Sequence[Task]) -> float | None:
        """A guess's mean reward in the wrapped environment."""
        return self.env.chance_of(tasks)

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        """Let the wrapped environment get ready."""
        await calls.prepare(self.env, tasks, sessions)

    async def reset(self, task: Task, *, seed: int | None = None) -> Opening:
        """Begin an episode."""
        openings = await calls.openings(self.env, task, seed=seed)
        return openings if len(self.agents) > 1 else openings[self.agents[0]]

    async def brief(self, task: Task) -> Task:
        """Return the wrapped environment's brief for an agent program."""
        return await calls.brief(self.env, task)

    async def step(self, message: Message) -> StepResult:
        """Answer the agent."""
        return await calls.step(self.env, message)

    async def state(self) -> Any:
        """The wrapped environment's state; a wrapper with a state of its own puts both into a mapping."""
        return await calls.state_data(self.env)

    async def restore(self, task: Task, state: Any) -> None:
        """Continue the wrapped environment's episode."""
        await calls.restore_data(self.env, task, state)

    async def fork(self) -> Env:
        """A copy of the wrapper around a fork of the wrapped environment; lists of its own are to be copied too."""
        other = copy.copy(self)
        vars(other).pop("tools", None)
        other.env = await calls.fork(self.env)
        return other

    async def close(self) -> None:
        """Close the wrapped environment."""
        await calls.close(self.env)

    async def expert(self, messages: Sequence[Message]) -> Message:
        """The next message of the wrapped environment's expert."""
        return await calls.expert(self.env, messages)

    async def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> Message:
        """The next message of the wrapped environment's demonstrator."""
        return await calls.demonstrate(self.env, messages, rng)

    async def critic_view(self, agent: str) -> Sequence[float]:
        """Return the wrapped environment's view for a critic."""
        numbers: Sequence[float] = await resolved(self.env.critic_view(agent))
        return numbers

    def _identity(self) -> str:
        return f"{type(self).__name__}({self.env._identity()})"


class TurnLimit(Wrapper):
    """Truncates an episode after `turns` assistant turns."""

    def __init__(self, env: Env, turns: int) -> None:
        super().__init__(env)
        self.turns = _positive("turns", turns)
        self.max_turns = min(turns, env.max_turns or turns)
        self._taken = 0

    async def reset(self, task: Task, *, seed: int | None = None) -> Opening:
        """Begin an episode and the count."""
        self._taken = 0
        return await super().reset(task, seed=seed)

    async def step(self, message: Message) -> StepResult:
        """Answer, and count."""
        result = await super().step(message)
        self._taken += 1
        return result if self._taken < self.turns else _cut(result, "turns")

    async def state(self) -> Any:
        """The turns taken, and the wrapped environment's state."""
        return {"turns": self._taken, "env": await super().state()}

    async def restore(self, task: Task, state: Any) -> None:
        """Continue, with the turns that were left."""
        await super().restore(task, state["env"])
        self._taken = state["turns"]


class TimeLimit(Wrapper):
    """Truncates an episode `seconds` after its reset, in the middle of a step if need be."""

    def __init__(self, env: Env, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(env)
        self.seconds, self._clock, self._began = _positive("seconds", seconds), clock, 0.0

    async def reset(self, task: Task, *, seed: int | None = None) -> Opening:
        """Begin an episode and the clock."""
        self._began = self._clock()
        return await super().reset(task, seed=seed)

    async def step(self, message: Message) -> StepResult:
        """Answer in the time that is left."""
        left = self._began + self.seconds - self._clock()
        if left <= 0:
            return _cut(StepResult(), "time")
        scope = asyncio.timeout(left)
        try:
            async with scope:
                result = await super().step(message)
        except TimeoutError:
            if not scope.expired():
                raise
            return _cut(StepResult(), "time")
        return result if self._clock() < self._began + self.seconds else _cut(result, "time")

    async def state(self) -> Any:
        """The seconds used, and the wrapped environment's state."""
        used = self._clock() - self._began
        return {"seconds": used, "env": await super().state()}

    async def restore(self, task: Task, state: Any) -> None:
        """Continue, with the seconds that were left; those between do not count."""
        await super().restore(task, state["env"])
        self._began = self._clock() - state["seconds"]


class TokenBudget(Wrapper):
    """Truncates an episode when its messages hold more than `tokens` tokens.

    An environment sees messages and no tokens, so they are counted by `count`, for instance
    `lambda text: len(tokenizer.encode(text))`; without one they are estimated from the length in bytes. What
    the conversation's format adds is not counted: the run's own budgets are exact, this one is an
    environment's rule of play.
    """

    def __init__(self, env: Env, tokens: int, count: Callable[[str], int] | None = None) -> None:
        super().__init__(env)
        self.tokens, self._count, self.used = _positive("tokens", tokens), count or _estimate, 0

    async def reset(self, task: Task, *, seed: int | None = None) -> Opening:
        """Begin an episode; its opening messages count."""
        opening = await super().reset(task, seed=seed)
        self.used = sum(self._count(_whole(message)) for message in _all(opening))
        return opening

    async def step(self, message: Message) -> StepResult:
        """Answer, and count the message and the answers."""
        result = await super().step(message)
        self.used += sum(self._count(_whole(said)) for said in (message, *result.messages, *_all(result.others)))
        return result if self.used <= self.tokens else _cut(result, "tokens")

    async def state(self) -> Any:
        """The tokens used, and the wrapped environment's state."""
        return {"tokens": self.used, "env": await super().state()}

    async def restore(self, task: Task, state: Any) -> None:
        """Continue, with the tokens that were left."""
        await super().restore(task, state["env"])
        self.used = state["tokens"]


class Transcript(Wrapper):
    """Keeps the messages, and appends each episode as one line of JSON to `path` when it ends or is closed."""

    def __init__(self, env: Env, path: str | Path | None = None) -> None:
        super().__init__(env)
        self.path = Path(path) if path is not None else None
        self.messages: list[Message] = []
        self._task, self._rewards = Task(id=""), list[float | None]()
        self._seed: int | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> Opening:
        """Begin an episode and its record."""
        self._write()
        opening = await super().reset(task, seed=seed)
        self.messages, self._rewards = _all(opening), []
        self._task, self._seed = task, seed
        return opening

    async def step(self, message: Message) -> StepResult:
        """Answer, and note both."""
        result = await super().step(message)
        self.messages += [message, *result.messages, *_all(result.others)]
        self._rewards.append(result.reward)
        if result.terminated or result.truncated:
            self._write()
        return result

    async def state(self) -> Any:
        """The record so far, and the wrapped environment's state."""
        messages = [message.model_dump(exclude_none=True) for message in self.messages]
        return {"messages": messages, "rewards": self._rewards, "seed": self._seed, "env": await super().state()}

    async def restore(self, task: Task, state: Any) -> None:
        """Continue the record."""
        await super().restore(task, state["env"])
        self.messages, self._rewards = [Message(**message) for message in state["messages"]], state["rewards"]
        self._task, self._seed = task, state["seed"]

    async def fork(self) -> Env:
        """A fork with a record of its own, which is written like the original's."""
        other = await super().fork()
        assert isinstance(other, Transcript)
        other.messages, other._rewards = list(self.messages), list(self._rewards)
        return other

    async def close(self) -> None:
        """Write what is not written yet, and close."""
        self._write()
        await super().close()

    def _write(self) -> None:
        if self.path is None or not self._rewards:
            return
        record = {
            "task": self._task.model_dump(),
            "seed": self._seed,
            "messages": [message.model_dump(exclude_none=True) for message in self.messages],
            "rewards": self._rewards,
        }
        with self.path.open("ab") as file:
            file.write(orjson.dumps(record, default=str) + b"\n")
        self._rewards = []


def _cut(result: StepResult, limit: str) -> StepResult:
    if not result.terminated:
        result.truncated = True
        result.info["limit"] = limit
    return result


def _all(opening: Opening) -> list[Message]:
    return opening[:] if isinstance(opening, list) else [message for each in opening.values() for message in each]


def _whole(message: Message) -> str:
    calls_made = "".join(call.function.name + call.function.arguments for call in message.tool_calls or ())
    return (message.reasoning_content or "") + message.text + calls_made


def _estimate(text: str) -> int:
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def _positive(name: str, value: N) -> N:
    if not value > 0:
        raise InvalidInput(f"{name} must be positive, not {value!r}")
    return value

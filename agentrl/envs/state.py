"""An episode in progress as data: what `Env.state` gives, and the form in which it is stored.

A state is plain data (None, booleans, numbers, text, bytes, lists, mappings with text keys), bound to the environment's
name and version and to the task. It holds files of a sandbox where there is one, and no processes.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.common.plain import plain as plainly
from agentrl.common.untrusted import safe_json
from agentrl.errors import EnvError, InvalidInput
from agentrl.tools.schema import show_value
from agentrl.types import Task

FORMAT = 1
"""The layout of `EnvState.to_bytes`."""


@dataclass(frozen=True)
class EnvState:
    """An episode between two steps. `calls.state` makes one, and `calls.restore` continues from it.

    Attributes:
        env: the environment's name, wrappers included: `TurnLimit(Shop)`.
        version: the environment's `version`.
        task: the episode's task.
        seed: the episode's seed.
        data: what the environment's `state` returned.
        counters: what the base class counts: tool calls, their failures by kind, calls that the expert wrote.
    """

    env: str
    version: str
    task: Task
    seed: int | None
    data: Any
    counters: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The state for a file or a database; mappings keep their order."""
        import msgspec

        task = safe_json({"id": self.task.id, "data": self.task.data}, integers=True)
        content = {**vars(self), "task": task, "format": FORMAT}
        try:
            return msgspec.msgpack.encode(content)
        except OverflowError:  # whole numbers of more than 64 bits
            return msgspec.msgpack.encode(content | {"task": json.dumps(task)})
        except TypeError as error:
            raise EnvError(f"the task {self.task.id!r} holds what can't be saved: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> EnvState:
        """The state that `to_bytes` wrote; InvalidInput where it is not one, or one of another version of agentrl."""
        import msgspec

        try:
            content = msgspec.msgpack.decode(data)
            if content.pop("format") != FORMAT:
                raise InvalidInput(f"the state has another layout than {FORMAT}, which this version of agentrl reads")
            task = content["task"]
            read = Task.model_validate_json(task) if isinstance(task, str) else Task(**task)
            return cls(**{**content, "task": read})
        except (msgspec.DecodeError, TypeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"not an environment's state: {error}") from None


@dataclass(frozen=True)
class EpisodeState:
    """An episode between two turns: what `run_episode` continues from (`ResumePoint`), besides the session's nodes.

    Attributes:
        env: the environment's.
        turn: how many turns the agents have taken.
        agents: whose turns come next; several move at once.
        order: the agents in the order in which they take turns.
        heads: the last node of each agent's conversation.
        rewards: the step reward of each of the session's nodes.
        counters: the session's.
    """

    env: EnvState
    turn: int
    agents: list[str]
    order: list[str]
    heads: dict[str, int]
    rewards: list[float | None]
    counters: dict[str, int]

    @property
    def nodes(self) -> int:
        """The session's number of nodes."""
        return len(self.rewards)

    def to_bytes(self) -> bytes:
        """The state for a store."""
        import msgspec

        return msgspec.msgpack.encode({**vars(self), "env": self.env.to_bytes()})

    @classmethod
    def from_bytes(cls, data: bytes) -> EpisodeState:
        """The state that `to_bytes` wrote; InvalidInput where it is not one, or one of another version of agentrl."""
        import msgspec

        try:
            content = msgspec.msgpack.decode(data)
            return cls(**{**content, "env": EnvState.from_bytes(content["env"])})
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            raise InvalidInput(f"not an episode's state: {error}") from None


def plain(value: Any, where: str, path: str = "") -> Any:
    """A deep copy of plain data, tuples as lists.

    Args:
        value: what an environment's `state` returned.
        where: whose it is, for the error.
        path: the place in it, for the error.

    Raises:
        EnvError: something in it is not plain data.
    """
    value = _number(value)
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return [plain(item, where, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(item, where, f"{path}[{key!r}]") for key, item in value.items()}
    allowed = "None, booleans, numbers of 64 bits, text, bytes, lists and mappings with text keys are allowed"
    raise EnvError(f"{where} gave {show_value(value)}{f' at {path}' if path else ''}: {allowed}")


def _number(value: Any) -> Any:
    """A scalar of another library as a number; anything else as it is."""
    found = plainly(value) if hasattr(value, "item") or isinstance(value, str | float | int) else value
    return found if isinstance(found, str | float | int) else value


async def resolve(value: Any) -> Any:
    """The result of a method that may be plain or async."""
    return await value if inspect.isawaitable(value) else value

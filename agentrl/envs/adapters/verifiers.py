"""`env=verifiers:NAME`: environments of the library verifiers, SingleTurnEnv, MultiTurnEnv, ToolEnv and their kin.

The library's own rollout is played turn by turn (`loops`): its model is the episode's agent, it runs its tools and
answers itself, and its rubric scores the state that it leaves. What the rubric measures is in the session's
`info["metrics"]`. A session that a limit of the run cut off is scored as it is, as the library does with prompts that
are too long.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from agentrl.common.imports import load
from agentrl.common.plain import plain
from agentrl.common.processes import keep_handlers
from agentrl.common.untrusted import safe_json
from agentrl.envs.adapters import library
from agentrl.envs.adapters.loops import Ask, EpisodeLoop
from agentrl.envs.base import Env, reward
from agentrl.envs.data.splits import TaskList, divide
from agentrl.errors import AgentRLError, ConfigError, EnvError, InfraError
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, Session, StepResult, Task, ToolCall

EXTRA = "verifiers"
EVERYTHING = (float("-inf"), float("inf"))


class Verifiers(Env):
    """An environment of verifiers, as in env=verifiers:wordle or env=verifiers:my_env.py:load_environment."""

    def __init__(self, source: str, **options: Any) -> None:
        """Load the environment; all instances share it.

        Args:
            source: the name of an installed environment, as verifiers.load_environment takes it, or the import path of
                a function that returns one.
            options: of its load_environment.
        """
        self.source = source
        self._env = _load(source, json.dumps(options, sort_keys=True, default=str))
        limit = getattr(self._env, "max_turns", -1)
        self.max_turns = limit if limit > 0 else None
        for tool in self._env.tool_defs or ():
            self.tools.add(Tool(tool.name, tool.description, dict(tool.parameters), _never))
        self._begun: EpisodeLoop[Any] | None = None

    def tasks(self, split: str = "train") -> list[Task]:
        """The rows of its data set; where it has none for evaluation, the rule of `splits` holds some out."""
        own = _has(self._env, "eval_dataset"), _has(self._env, "dataset")
        rows = self._env.get_eval_dataset() if split == "eval" or not own[1] else self._env.get_dataset()
        found = [
            Task(id=f"{split}-{row.get('example_id', index)}", data=safe_json(row, whole=True, integers=True))
            for index, row in enumerate(rows)
        ]
        where = f"env=verifiers:{self.source}"
        columns = sorted({name for task in found for name in task.data})
        noted = TaskList(found, [f"{where}: {len(found):,} rows of {', '.join(columns)}, which its own rubric scores"])
        return noted if all(own) else divide(noted, split, _prompt, where)

    @property
    def _loop(self) -> EpisodeLoop[Any]:
        if self._begun is None:
            raise EnvError(f"verifiers:{self.source}: no episode has begun")
        return self._begun

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        await self.close()

        async def rollout(ask: Ask) -> Any:
            return await self._env.rollout(task.data, _client()(ask), self.source, {})

        self._begun = EpisodeLoop(rollout, self.tools.names, f"verifiers:{self.source}")
        opening = await self._loop.begin()
        if opening is None:
            self._raise_infra(self._loop.result)
            raise EnvError(f"verifiers:{self.source}: the rollout of {task.id} ended before the first turn")
        return opening

    async def step(self, message: Message) -> StepResult:
        following = await self._loop.answer(message)
        if following is None:
            self._raise_infra(self._loop.result)
            return StepResult(_said_last(self._loop.result), terminated=True)
        return following

    @reward(range=EVERYTHING)
    async def rubric(self, session: Session) -> float:
        """The rubric's reward of the rollout's state."""
        state = await self._loop.end(library("verifiers.errors", EXTRA).OverlongPromptError())
        await self._env.rubric.score_rollout(state)
        await self._env.rubric.cleanup(state)
        session.info["metrics"] = {name: plain(value) for name, value in (state["metrics"] or {}).items()}
        return state["reward"]  # type: ignore[no-any-return]

    async def close(self) -> None:
        loop, self._begun = self._begun, None
        if loop is not None:
            await loop.close()

    def _raise_infra(self, state: Any) -> None:
        """Raise what failed in the library's infrastructure; other errors are scored as they are."""
        error = state.get("error")
        if isinstance(error, library("verifiers.errors", EXTRA).InfraError):
            raise InfraError(f"verifiers:{self.source}: {type(error).__name__}: {error}") from error


@cache
def _load(source: str, options: str) -> Any:
    """The library's environment; loading one may take long, and one serves all episodes."""
    verifiers = _verifiers()
    given = json.loads(options)
    with keep_handlers():
        try:
            if ":" in source:
                env = load(source, f"env=verifiers:{source}")(**given)
            else:
                env = verifiers.load_environment(source, **given)
        except AgentRLError:
            raise
        except Exception as error:
            raise ConfigError(f"env=verifiers:{source}: {type(error).__name__}: {error}") from error
    if not hasattr(env, "rollout") or not hasattr(env, "rubric"):
        raise ConfigError(f"env=verifiers:{source} gives {type(env).__name__}: allowed: a verifiers.Environment")
    if getattr(env.rubric, "has_group_rewards", False):
        raise ConfigError(
            f"env=verifiers:{source}: its rubric scores rollouts of a group together: allowed: functions that score "
            "one rollout"
        )
    return env


def _verifiers() -> Any:
    """The library, in a version that has environments as classes."""
    found = library("verifiers", EXTRA)
    if not hasattr(found, "load_environment"):
        raise ConfigError(
            f"verifiers {getattr(found, '__version__', '')} has no load_environment: allowed: a version before 0.4; "
            "the harnesses of later ones are programs, for agent="
        )
    if not os.environ.get("VF_LOG_LEVEL"):
        logging.getLogger("verifiers").setLevel(logging.WARNING)
    return found


def _has(env: Any, name: str) -> bool:
    return getattr(env, name, None) is not None or getattr(env, f"{name}_source", None) is not None


@cache
def _client() -> Any:
    """The class of a client of the library that asks an episode's agent.

    The base class has hooks for the formats of providers; none is called, since the one method that calls them is ours.
    """
    base, types = library("verifiers.clients", EXTRA).Client, library("verifiers.types", EXTRA)

    class AgentClient(base):  # type: ignore[misc, valid-type]
        """Asks the episode's agent."""

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            said = await self._client([_message(each) for each in prompt], [tool.name for tool in tools or ()])
            return _response(types, said)

    AgentClient.__abstractmethods__ = frozenset()
    return AgentClient


def _message(theirs: Any) -> Message:
    given: Mapping[str, Any] = theirs if isinstance(theirs, Mapping) else theirs.model_dump()
    calls = [
        ToolCall(id=call["id"], function=FunctionCall(name=call["name"], arguments=call["arguments"]))
        for call in given.get("tool_calls") or ()
    ]
    role, content = given["role"], given.get("content")
    return Message(
        role="user" if role == "text" else role,
        content=content,
        tool_calls=calls or None,
        tool_call_id=given.get("tool_call_id"),
    )


def _response(types: Any, said: Message) -> Any:
    calls = [
        types.ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in said.tool_calls or ()
    ]
    message = types.ResponseMessage(
        content=said.text,
        reasoning_content=said.reasoning_content,
        tool_calls=calls or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return types.Response(id="agentrl", created=0, model="agentrl", message=message)


def _said_last(state: Any) -> list[Message]:
    """Return what the environment said after the last turn, where it did."""
    last: Sequence[Any] | str | None = state.get("final_env_response")
    if isinstance(last, str):
        return [Message(role="user", content=last)]
    return [_message(each) for each in last or ()]


def _prompt(task: Task) -> str:
    """Return what the model is asked: a row's prompt, or all of it but its number."""
    return json.dumps(task.data.get("prompt", {**task.data, "example_id": None}), sort_keys=True)


async def _never(arguments: dict[str, Any], sandbox: Any) -> str:
    """The library runs its tools itself."""
    raise EnvError("a tool of verifiers is run by its own rollout")

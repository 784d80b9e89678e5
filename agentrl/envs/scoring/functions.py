"""Reward functions of other frameworks, as they are: `rewards.NAME=trl`, `verl` and `slime`.

A function is called once for each session, with a batch of one where its framework gives batches, in a thread where it
is plain. It reads columns of the task's row, which `env=prompts` keeps whole, as a copy: what it changes there is not
seen by the task's next session. What it raises, and what it returns that is no number, is an infrastructure error, as
with every reward, since it may depend on what the model wrote. An argument that it lacks ends the run, since every
session would lack it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pydantic import Field

from agentrl.common.foreign_errors import words
from agentrl.common.imports import load
from agentrl.common.plain import plain
from agentrl.config import RewardConfig
from agentrl.envs.adapters.slime import arguments_of, load_function, sample_of
from agentrl.envs.data.conditions import inside
from agentrl.envs.rewards import Reward
from agentrl.envs.state import resolve
from agentrl.errors import ConfigError, InfraError
from agentrl.tools.threads import run_in_thread
from agentrl.types import Message, Node, Session, Status

EVERYTHING = (float("-inf"), float("inf"))
SIGNALS = "signal only works in main thread"
"""Python's words where a thread sets a signal's handler, as Math-Verify's time limits do."""


class FunctionConfig(RewardConfig):
    """Settings of a reward that is a function of another framework."""

    function: str
    """The function: path/to/file.py:NAME or package.module:NAME."""
    kwargs: dict[str, Any] = Field(default={})
    """Arguments that it is given besides, by name."""


class FunctionReward(Reward):
    """A function of another framework; subclasses say how it is called and what it returns."""

    settings = FunctionConfig
    range = EVERYTHING
    config: FunctionConfig

    def __init__(self, config: FunctionConfig) -> None:
        super().__init__(config)
        where = f"function={config.function!r}"
        self._function: Callable[..., Any] = self.load(where)
        if isinstance(self._function, type) or not callable(self._function):
            raise ConfigError(f"{where} is {self._function!r:.80}: allowed: a function")

    def load(self, where: str) -> Any:
        """Load the function; `where` names it in messages."""
        return load(self.config.function, where)

    async def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(self._signature.parameters)
            given = f" (given: {', '.join(kwargs)})" if kwargs else ""
            raise ConfigError(f"{self.config.function}({known}): {error}{given}") from None
        return await call_function(self._function, *args, **kwargs)

    def _arguments(self) -> dict[str, Any]:
        """Those of the settings, which no call can change for the next one."""
        return copy.deepcopy(self.config.kwargs)

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self._function)


async def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function, plain or async; a plain one runs in a thread, or on the event loop where it uses signals."""
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object, whether it is a coroutine function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        return await function(*args, **kwargs)
    try:
        return await resolve(await run_in_thread(function, *args, **kwargs))
    except ValueError as error:
        if SIGNALS not in words(error.__cause__ or error):
            raise
    return await resolve(function(*args, **kwargs))


def messages_from_agent(session: Session) -> list[Message]:
    """Return the messages from the agent's first one on."""
    messages = session.messages
    first = next((place for place, each in enumerate(messages) if each.role == "assistant"), len(messages))
    return messages[first:]


def join_reasoning(message: Message) -> str:
    """Return a message's text with its reasoning in front, where other frameworks have the model's own text."""
    apart = message.reasoning_content
    return f"<think>{apart}</think>{message.text}" if apart else message.text


def join_messages(session: Session) -> str:
    """Return all that was said from the agent's first message on, a line each."""
    return "\n".join(map(join_reasoning, messages_from_agent(session)))


def newest_path(session: Session) -> list[Node]:
    """Return the path that ends the conversation, as `Session.messages` does."""
    paths = list(session.paths())
    return paths[-1] if paths else []


def token_ids(session: Session) -> list[int]:
    """Return the tokens from the first sampled one on, those of tools' answers among them."""
    path = newest_path(session)
    first = next((place for place, node in enumerate(path) if node.sampled), len(path))
    tokens = [token for node in path[first:] for token in node.token_ids]
    opening = path[first].versions[0].start if path[first:] and path[first].versions else 0  # the generation prompt
    return tokens[opening:]


def trl_batch(session: Session) -> dict[str, list[Any]]:
    """Return what TRL gives its reward functions for one session: a batch of one, by argument."""
    row = copy.deepcopy(session.task.data)
    prompt = row.get("prompt", "")
    said = messages_from_agent(session)
    answers = (each for each in reversed(said) if each.role == "assistant" and each.text == session.answer)
    completion: Any = next(map(join_reasoning, answers), session.answer)
    if not isinstance(prompt, str):
        completion = [_dump_joined(each) for each in said]
    columns = {name: [value] for name, value in row.items() if name not in ("completion", "completion_ids")}
    return {**columns, "prompts": [prompt], "completions": [completion], "completion_ids": [token_ids(session)]}


def _dump_joined(message: Message) -> dict[str, Any]:
    """A message in OpenAI's shape; TRL has the reasoning in the content."""
    joined = {"reasoning_content": None, "content": join_reasoning(message)} if message.reasoning_content else {}
    return message.model_copy(update=joined).model_dump(exclude_none=True)


def one_of(values: Any, function: str) -> Any:
    """Return the value of a batch of one; InfraError where there is not just one."""
    values = plain(values)
    if not isinstance(values, list | tuple) or len(values) != 1:
        raise InfraError(f"{function} returned {values!r:.80} for one completion: allowed: a list of one number")
    return values[0]


def nothing(*_: Any, **__: Any) -> None:
    """Take a value that TRL would log."""


class TrlFunction(FunctionReward):
    """A reward function of TRL: `f(prompts, completions, **columns)`, which returns a list."""

    async def compute(self, session: Session) -> float | None:
        batch = trl_batch(session)
        batch.pop("prompt", None)
        more = {"trainer_state": None, "log_extra": nothing, "log_metric": nothing}
        found = await self._call(**{**batch, **more, **self._arguments()})
        return one_of(found, self.config.function)  # type: ignore[no-any-return]


class VerlConfig(FunctionConfig):
    """The settings of `verl`."""

    ground_truth: str = "reward_model.ground_truth"
    """The field of the row with the right answer; a.b is inside a field."""


class VerlFunction(FunctionReward):
    """A reward function of verl: `compute_score(data_source, solution_str, ground_truth, extra_info)`."""

    settings = VerlConfig
    config: VerlConfig

    async def compute(self, session: Session) -> float:
        """Call it; of a mapping `score` counts, and the rest is in the session's `info`."""
        row = copy.deepcopy(session.task.data)
        truth: Any = None
        with suppress(KeyError):
            truth = inside(row, self.config.ground_truth)
        if truth is None:
            fields = ", ".join(row)
            raise ConfigError(
                f"task {session.task.id!r} has no {self.config.ground_truth!r} (ground_truth; its fields: {fields})"
            )
        given = {
            "data_source": row.get("data_source") or "",
            "solution_str": join_messages(session),
            "ground_truth": truth,
            "extra_info": {**(row.get("extra_info") or {}), "num_turns": session.turns},
        }
        found = await self._call(**{**given, **self._arguments()})
        return _number(session, found, "score", self.config.function)


class SlimeConfig(FunctionConfig):
    """The settings of `slime`."""

    reward_key: str = "score"
    """Of a mapping that it returns, the value that counts."""


class SlimeFunction(FunctionReward):
    """A reward function of slime: `async def f(args, sample, **kwargs)`; `args` has the `kwargs` as attributes."""

    settings = SlimeConfig
    config: SlimeConfig

    def load(self, where: str) -> Any:
        """Load it beside what it imports of slime."""
        return load_function(self.config.function, where)

    async def compute(self, session: Session) -> float:
        tokens = [token for node in newest_path(session) for token in node.token_ids]
        sample = sample_of(
            session.task,
            join_messages(session),
            tokens,
            len(token_ids(session)),
            cut=session.status is Status.TRUNCATED,
        )
        found = await self._call(arguments_of(self._arguments(), reward_key=self.config.reward_key), sample)
        return _number(session, found, self.config.reward_key, self.config.function)


def _number(session: Session, found: Any, key: str, function: str) -> float:
    """The number of what a function returned; of a mapping the rest is noted in the session."""
    found = plain(found)
    if isinstance(found, Mapping):
        if key not in found:
            raise InfraError(f"{function} returned a mapping without {key!r} (its keys: {', '.join(map(str, found))})")
        session.info[function] = dict(found)
        found = plain(found[key])
    if not isinstance(found, int | float):
        raise InfraError(f"{function} returned {found!r:.80}: allowed: a number")
    return float(found)

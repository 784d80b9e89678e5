"""`env=inspect:FILE.py@TASK`: tasks of inspect_ai, with their solvers and scorers.

A sample's solver is played turn by turn (`loops`): its model is the episode's agent, it runs its tools itself, and the
task's scorers score the state that it leaves. The library has no public call that runs one sample, and its evaluations
may not run side by side, so the few steps of a sample's run are written here, with what the library's own runner uses.
A session that a limit of the run cut off is scored as the library scores one that exceeded a limit.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.envs.adapters import library
from agentrl.envs.adapters.loops import Ask, Loop
from agentrl.envs.base import Env, reward
from agentrl.envs.splits import TaskList
from agentrl.errors import AgentRLError, ConfigError, EnvError, nearest
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, Session, StepResult, Task, ToolCall
from agentrl.untrusted import read_json

EXTRA = "inspect"
EVERYTHING = (float("-inf"), float("inf"))
CONNECTIONS = 100_000
"""Turns that may be waited for at once; the library's own limit is for providers' APIs."""
ToolSchema = tuple[str, str, dict[str, Any]]
Scores = dict[str, float | None]
"""By the scorers' names, and by name.key where a score has several values; None where the sample is left out."""


@dataclass(frozen=True)
class Loaded:
    """A task, and the tools that its solver offers at the first turn of its first sample."""

    task: Any
    tools: tuple[ToolSchema, ...]


class Inspect(Env):
    """A task of inspect_ai, as in env=inspect:arithmetic.py@addition or env=inspect:inspect_evals/gsm8k."""

    splits = ("eval",)

    def __init__(self, source: str, scorer: str | None = None, **options: Any) -> None:
        """Load the task; all instances share it.

        Args:
            source: the task, as `inspect eval` takes it: FILE.py@TASK, or PACKAGE/TASK.
            scorer: whose value is the reward, as info["scores"] names it; the first one's by default.
            options: of the task's function.
        """
        self.source, self.scorer = source, scorer
        self._loaded = _load(source, json.dumps(options, sort_keys=True, default=str))
        for name, description, parameters in self._loaded.tools:
            self.tools.add(Tool(name, description, parameters, _never))
        self._loop: Loop[Scores] | None = None

    def tasks(self, split: str = "eval") -> list[Task]:
        """Its samples."""
        samples = enumerate(self._loaded.task.dataset)
        names = ((place, place if sample.id is None else sample.id) for place, sample in samples)
        found = [Task(id=f"sample-{name}", data={"place": place}) for place, name in names]
        return TaskList(found, [f"env=inspect:{self.source}: {len(found):,} samples, which its own scorers score"])

    def brief(self, task: Task) -> Task:
        """The sample's input, without its target."""
        sample = self._loaded.task.dataset[task["place"]]
        return Task(id=task.id, data={"input": [_message(each).model_dump() for each in _opening(sample)]})

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        """Begin its solver; the messages of the first request."""
        await self.close()
        sample = self._loaded.task.dataset[task["place"]]

        async def run(ask: Ask) -> Scores:
            return await _run(self._loaded.task, sample, ask)

        self._loop = Loop(run, self.tools.names, f"inspect:{self.source}")
        opening = await self._loop.begin()
        if opening is None:
            raise EnvError(f"inspect:{self.source}: the solver of {task.id} asks its model nothing")
        return opening

    async def step(self, message: Message) -> StepResult:
        """Give the solver its turn."""
        assert self._loop is not None
        following = await self._loop.answer(message)
        return StepResult(terminated=True) if following is None else StepResult(following)

    @reward(range=EVERYTHING)
    async def score(self, session: Session) -> float | None:
        """The scorer's value, as a number: 1 for correct, 0 for incorrect, 0.5 for partly correct; None is unscored."""
        assert self._loop is not None
        error = library("inspect_ai.util", EXTRA).LimitExceededError("custom", value=1, limit=1)
        scores = await self._loop.end(error)
        session.info["scores"] = {name: value for name, value in scores.items() if value is not None}
        name = self.scorer or next(iter(scores), "")
        if name not in scores:
            guess = nearest(name, scores)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise ConfigError(f"env.scorer={name!r}: the sample has the scores {', '.join(scores) or 'none'}{hint}")
        return scores[name]

    async def close(self) -> None:
        """End the solver."""
        loop, self._loop = self._loop, None
        if loop is not None:
            await loop.close()


@cache
def _load(source: str, options: str) -> Loaded:
    """The task, by the library's own rules for names.

    Raises:
        ConfigError: there is none, or more than one, or it can't be played.
    """
    where = f"env=inspect:{source}"
    if source.endswith(".py"):
        raise ConfigError(f"{where} is a file: allowed: a task of it, as in {source}@TASK")
    load_tasks = library("inspect_ai._eval.loader", EXTRA).load_tasks
    try:
        found = load_tasks([source], json.loads(options))
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {type(error).__name__}: {error}") from error
    if len(found) != 1:
        names = ", ".join(str(task.name) for task in found) or "none"
        raise ConfigError(f"{where} names {len(found)} tasks ({names}): allowed: one, as in FILE.py@TASK")
    (task,) = found
    if task.scorer is None:
        raise ConfigError(f"{where}: the task has no scorer, so there is no reward")
    if task.sandbox is not None or any(sample.sandbox for sample in task.dataset):
        raise ConfigError(f"{where}: the task runs in a sandbox of inspect_ai: allowed: tasks without one")
    with ThreadPoolExecutor(1) as thread:  # a loop of its own: this one may be running
        return Loaded(task, thread.submit(asyncio.run, _offered(task)).result())


async def _offered(task: Any) -> tuple[ToolSchema, ...]:
    """The tools of the first request of the first sample, whose solver is ended by it."""
    limit = library("inspect_ai.util", EXTRA).LimitExceededError
    offered: list[ToolSchema] = []

    async def refuse(messages: Any, tools: Any, choice: Any, config: Any) -> Any:
        if not offered:
            offered.extend((tool.name, tool.description, _schema(tool)) for tool in tools)
        raise limit("custom", value=1, limit=1)

    await _solve(task, task.dataset[0], refuse)
    return tuple(offered)


async def _run(task: Any, sample: Any, ask: Ask) -> Scores:
    """Run a sample and score it."""
    registry, metric = library("inspect_ai._util.registry", EXTRA), library("inspect_ai.scorer", EXTRA)
    types = library("inspect_ai.model", EXTRA)

    async def answer(messages: Any, tools: Any, choice: Any, config: Any) -> Any:
        said = await ask([_message(each) for each in messages], [tool.name for tool in tools])
        return _output(types, said)

    state = await _solve(task, sample, answer)
    state.completed = True
    number, scores = metric.value_to_float(), Scores()
    for scorer in task.scorer:
        given = await scorer(state, metric.Target(sample.target))
        name = str(registry.registry_unqualified_name(scorer))
        value = math.nan if given is None else given.value
        for key, each in value.items() if isinstance(value, Mapping) else [("", value)]:
            found = float(number(each))
            scores[f"{name}.{key}" if key else name] = None if math.isnan(found) else found
    return scores


async def _solve(task: Any, sample: Any, model: Any) -> Any:
    """Run a sample's solver with a model; the state that it leaves, also where it was ended by a limit."""
    solver, models = library("inspect_ai.solver", EXTRA), library("inspect_ai.model", EXTRA)
    states, util = library("inspect_ai.solver._task_state", EXTRA), library("inspect_ai.util", EXTRA)
    internal = library("inspect_ai.model._model", EXTRA)
    config = models.GenerateConfig(max_connections=CONNECTIONS)
    agent = models.get_model("mockllm/agentrl", memoize=False, config=config, custom_outputs=model)
    state = solver.TaskState(
        model=models.ModelName(agent),
        sample_id=0 if sample.id is None else sample.id,
        epoch=1,
        input=sample.input,
        messages=_opening(sample),
        target=library("inspect_ai.scorer", EXTRA).Target(sample.target),
        choices=sample.choices,
        metadata=dict(sample.metadata or {}),
    )
    internal.init_active_model(agent, config)
    internal.init_sample_model_data()
    states.set_sample_state(state)
    library("inspect_ai.util._store", EXTRA).init_subtask_store(state.store)
    transcript = library("inspect_ai.log._transcript", EXTRA)
    transcript.init_transcript(transcript.Transcript())
    generated = library("inspect_ai._eval.task.generate", EXTRA).task_generate

    async def generate(state: Any, tool_calls: Any = "loop", cache: Any = False, **_: Any) -> Any:
        return await generated(agent, state, tool_calls, cache, config)

    try:
        with util.message_limit(task.message_limit):
            for each in filter(None, (task.setup, task.solver)):
                state = await each(state, generate)
    except util.LimitExceededError:
        state = states.sample_state() or state
    return state


def _opening(sample: Any) -> list[Any]:
    """A sample's messages; copies, since solvers change them."""
    if isinstance(sample.input, str):
        return [library("inspect_ai.model", EXTRA).ChatMessageUser(content=sample.input)]
    return [message.model_copy(deep=True) for message in sample.input]


def _schema(tool: Any) -> dict[str, Any]:
    return dict(tool.parameters.model_dump(exclude_none=True, by_alias=True))


def _message(theirs: Any) -> Message:
    """A message of the library as one of ours."""
    calls: Sequence[Any] = getattr(theirs, "tool_calls", None) or ()
    failed = getattr(theirs, "error", None)
    return Message(
        role=theirs.role,
        content=failed.message if failed is not None else theirs.text,
        tool_calls=[
            ToolCall(id=call.id, function=FunctionCall(name=call.function, arguments=json.dumps(call.arguments)))
            for call in calls
        ]
        or None,
        tool_call_id=getattr(theirs, "tool_call_id", None),
    )


def _output(types: Any, said: Message) -> Any:
    """A turn as the library's model output."""
    tool = library("inspect_ai.tool", EXTRA)
    calls = []
    for call in said.tool_calls or ():
        arguments, error = _arguments(call)
        calls.append(tool.ToolCall(call.id, call.function.name, arguments, parse_error=error))
    message = types.ChatMessageAssistant(content=said.text, tool_calls=calls or None, source="generate")
    choice = types.ChatCompletionChoice(message=message, stop_reason="tool_calls" if calls else "stop")
    return types.ModelOutput(model="agentrl", choices=[choice], usage=types.ModelUsage())


def _arguments(call: ToolCall) -> tuple[dict[str, Any], str | None]:
    """A call's arguments, and why they can't be read."""
    try:
        found = read_json(call.function.arguments or "{}")
    except ValueError as error:
        return {}, call.error or f"the arguments are not valid JSON: {error}"
    if not isinstance(found, dict):
        return {}, f"the arguments must be a JSON object, not {type(found).__name__}"
    return found, call.error


async def _never(arguments: dict[str, Any], sandbox: Any) -> str:
    """The library runs its tools itself."""
    raise EnvError("a tool of inspect_ai is run by its own solver")

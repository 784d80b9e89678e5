"""`env=inspect:FILE.py@TASK`: tasks of inspect_ai, run by the library's own evaluation (`inspect_runner`).

An episode is a sample of that evaluation, whose model is the episode's agent: the library runs solver, tools, limits
and scorers. Reset and step hand its requests over. One that goes on with the conversation is answered in it; any other
(a critique, a graded answer, a history that was cut) begins a path of its own, by `StepResult.fresh`. A session that a
limit of the run cut off is scored as the library scores one that exceeded a limit. The tokens of each turn are told to
the library, as providers count them, so its token limits hold.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.common.untrusted import read_json
from agentrl.envs.adapters import library
from agentrl.envs.adapters.loops import same
from agentrl.envs.base import Env, reward
from agentrl.envs.context import context_of
from agentrl.envs.data.splits import TaskList
from agentrl.errors import AgentRLError, ConfigError, EnvError, suggest
from agentrl.sessions.tree import tree
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, Session, StepResult, Task, ToolCall

EXTRA = "inspect"
EVERYTHING = (float("-inf"), float("inf"))
ToolSchema = tuple[str, str, dict[str, Any]]
Scores = dict[str, float | None]
"""By the scorers' names, and by name.key where a score has several values; None where the sample is left out."""


@dataclass(frozen=True)
class _LoadedTask:
    """A task's evaluation, and the tools that its solver offers at the first turn of its first sample."""

    evaluation: Any
    tools: tuple[ToolSchema, ...]


class Inspect(Env):
    """A task of inspect_ai, as in env=inspect:arithmetic.py@addition or env=inspect:inspect_evals/gsm8k."""

    splits = ("eval",)

    def __init__(
        self, source: str, scorer: str | None = None, grader: str | None = None, isolated: bool = True, **options: Any
    ) -> None:
        """Load the task; all instances share it.

        Args:
            source: the task, as `inspect eval` takes it: FILE.py@TASK, or PACKAGE/TASK.
            scorer: whose value is the reward, as info["scores"] names it; the first one's by default.
            grader: the model of the role `grader`, as inspect_ai names it; by default the agent grades itself.
            isolated: whether tasks are refused whose sandbox is the library's `local`: this machine, as it is.
            options: of the task's function.
        """
        self.source, self.scorer = source, scorer
        self._loaded = _load(source, json.dumps(options, sort_keys=True, default=str), grader, isolated, os.getpid())
        for name, description, parameters in self._loaded.tools:
            self.tools.add(Tool(name, description, parameters, _never))
        self._played: Any = None
        self._request: Any = None
        self._known: list[Message] = []
        self._counted = 0, 0

    def tasks(self, split: str = "eval") -> list[Task]:
        samples = enumerate(self._loaded.evaluation.samples)
        names = ((place, place if sample.id is None else sample.id) for place, sample in samples)
        found = [Task(id=f"sample-{name}", data={"place": place}) for place, name in names]
        return TaskList(found, [f"env=inspect:{self.source}: {len(found):,} samples, which its own scorers score"])

    def brief(self, task: Task) -> Task:
        sample = self._loaded.evaluation.samples[task["place"]]
        return Task(id=task.id, data={"input": [_message(each).model_dump() for each in _opening(sample)]})

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        await self.close()
        self._played = await self._loaded.evaluation.begin(task["place"])
        opening = await self._next()
        if opening is None:
            raise EnvError(f"inspect:{self.source}: the solver of {task.id} asks its model nothing")
        return opening.messages

    async def step(self, message: Message) -> StepResult:
        self._known.append(message)
        if not self._request.answer.done():  # else the library has given up waiting, by a limit of its own
            self._request.answer.set_result(_output(library("inspect_ai.model", EXTRA), message, *self._count_tokens()))
        return await self._next() or StepResult(terminated=True)

    def _count_tokens(self) -> tuple[int, int]:
        """The tokens of the prompt and of the turn that is answered: the run's own, or what a provider counted."""
        answered = context_of(self).answered
        if answered is None:
            return 0, 0
        session, node = answered
        if "completion_tokens" in session.counters:  # of a model behind an API, of all turns so far
            counted = session.counters["prompt_tokens"], session.counters["completion_tokens"]
            (prompt, completion), self._counted = self._counted, counted
            return counted[0] - prompt, counted[1] - completion
        if not node.versions:
            return 0, 0
        opening = node.versions[0].start
        return tree.position(session, node.id) + opening, len(node.token_ids) - opening

    async def _next(self) -> StepResult | None:
        """The next request, as an answer to the agent; None where the sample has ended."""
        self._request = await self._played.next()
        if not hasattr(self._request, "answer"):
            self._check(self._request)
            return None
        messages = [_message(each) for each in self._request.messages]
        if unknown := sorted({tool.name for tool in self._request.tools} - set(self.tools.names)):
            self._played.cut_off()
            raise EnvError(
                f"inspect:{self.source} offers the tools {', '.join(unknown)} at this turn: allowed: those of "
                f"the first sample's first turn ({', '.join(self.tools.names) or 'none'})"
            )
        known = len(self._known)
        goes_on = len(messages) > known and all(map(same, self._known, messages))
        self._known = list(messages)
        return StepResult(messages[known:] if goes_on else messages, fresh=not goes_on)

    @reward(range=EVERYTHING)
    async def score(self, session: Session) -> float | None:
        """The scorer's value, as a number: 1 for correct, 0 for incorrect, 0.5 for partly correct; None is unscored."""
        sample = await self._played.end()
        if sample.error is not None and self._played.cut:
            return 0.0  # a scorer that wants turns of the agent gets none after a limit of the run
        self._check(sample)
        scores = _numbers(sample)
        session.info["scores"] = {name: value for name, value in scores.items() if value is not None}
        name = self.scorer or next(iter(scores), "")
        if name not in scores:
            if not scores and not self.scorer:
                return None
            hint = suggest(name, scores)
            raise ConfigError(f"env.scorer={name!r}: the sample has the scores {', '.join(scores) or 'none'}{hint}")
        return scores[name]

    def _check(self, sample: Any) -> None:
        """Raise an EnvError where the library says that a sample failed."""
        if sample.error is not None and not self._played.cut:
            raise EnvError(f"inspect:{self.source}: sample {sample.id} failed: {sample.error.message}")

    async def close(self) -> None:
        episode, self._played = self._played, None
        self._request, self._known, self._counted = None, [], (0, 0)
        if episode is not None:
            episode.cut_off()


@cache
def _load(source: str, options: str, grader: str | None, isolated: bool, process: int) -> _LoadedTask:
    """The task, by the library's own rules for names, and its evaluation, which is a process's own."""
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
    sandboxes = {each.type for each in (task.sandbox, *(sample.sandbox for sample in task.dataset)) if each is not None}
    if isolated and "local" in sandboxes:
        raise ConfigError(
            f"{where}: the task's sandbox is `local`, so the agent's commands would run on this machine, which nothing "
            "isolates: allowed with env.isolated=false"
        )
    roles = {} if grader is None else {"grader": grader}
    evaluation = library("agentrl.envs.adapters.inspect_runner", EXTRA).InspectEvaluation(
        task, f"inspect:{source}", roles
    )
    with ThreadPoolExecutor(1) as thread:  # a loop of its own: this one may be running
        return _LoadedTask(evaluation, thread.submit(asyncio.run, _list_tools(evaluation)).result())


async def _list_tools(evaluation: Any) -> tuple[ToolSchema, ...]:
    """The tools of the first request of the first sample, which is ended by it."""
    episode = await evaluation.begin(0)
    first = await episode.next()
    episode.cut_off()
    return tuple((tool.name, tool.description, _schema(tool)) for tool in getattr(first, "tools", ()))


def _numbers(sample: Any) -> Scores:
    number = library("inspect_ai.scorer", EXTRA).value_to_float()
    found = Scores()
    for name, score in (sample.scores or {}).items():
        value = score.value
        for key, each in value.items() if isinstance(value, Mapping) else [("", value)]:
            given = math.nan if each is None else float(number(each))
            found[f"{name}.{key}" if key else name] = None if math.isnan(given) else given
    return found


def _opening(sample: Any) -> list[Any]:
    """A sample's messages; copies, since solvers change them."""
    if isinstance(sample.input, str):
        return [library("inspect_ai.model", EXTRA).ChatMessageUser(content=sample.input)]
    return [message.model_copy(deep=True) for message in sample.input]


def _schema(tool: Any) -> dict[str, Any]:
    return dict(tool.parameters.model_dump(exclude_none=True, by_alias=True))


def _message(theirs: Any) -> Message:
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


def _output(types: Any, said: Message, prompt: int, completion: int) -> Any:
    """A turn as the library's model output, with its tokens and those of its prompt."""
    tool = library("inspect_ai.tool", EXTRA)
    calls = []
    for call in said.tool_calls or ():
        arguments, error = _arguments(call)
        calls.append(tool.ToolCall(call.id, call.function.name, arguments, parse_error=error))
    message = types.ChatMessageAssistant(content=said.text, tool_calls=calls or None, source="generate")
    choice = types.ChatCompletionChoice(message=message, stop_reason="tool_calls" if calls else "stop")
    usage = types.ModelUsage(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)
    return types.ModelOutput(model="agentrl", choices=[choice], usage=usage)


def _arguments(call: ToolCall) -> tuple[dict[str, Any], str | None]:
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

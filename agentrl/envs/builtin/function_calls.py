"""`env=function_calls`: which functions a model calls with what arguments, in the format of BFCL.

The Berkeley Function Calling Leaderboard (Patil et al., 2025) has a file of questions with the functions on offer, and
one of the same name in `possible_answer/`, where each expected call has the values that are right for each argument; an
empty text among them means that it may be left out. Nothing is run: the calls of one message are compared, in any
order. Texts are compared without case, spaces and punctuation, as the leaderboard does. Where nothing on offer helps
(`irrelevance`) no call is right. The categories of several turns need the leaderboard's own simulators: they are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.common.untrusted import has_visible
from agentrl.envs.base import Env, reward
from agentrl.envs.data.rows import Row, describe_content, read_rows, require_file
from agentrl.envs.data.splits import TaskList
from agentrl.errors import ConfigError, ToolArguments
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, Session, StepResult, Task, ToolCall
from agentrl.types.messages import parse_arguments

ANSWERS = "possible_answer"
"""The folder beside a file of questions that has their answers."""
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Types of the format that JSON schema calls otherwise; `any` is none at all."""
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_IGNORED = re.compile(r"[ ,./\-_*^]")

Call = tuple[str, Mapping[str, Any]]


class FunctionCalls(Env):
    """Call the right functions with the right arguments: a file of BFCL.

    Args:
        path: the file of questions, such as BFCL_v3_parallel.json.
        answers: that of their answers; None is the one of the same name in possible_answer/ beside it.
    """

    splits = ("eval",)
    max_turns = 1

    def __init__(self, path: str, answers: str | None = None) -> None:
        self.path = Path(path).expanduser()
        beside = self.path.parent / ANSWERS / self.path.name
        self.answers = Path(answers).expanduser() if answers else beside if beside.is_file() else None
        for key, file in (("path", self.path), ("answers", self.answers)):
            if file is not None:
                require_file(f"env.{key}", file)
        self._task = Task(id="")

    def tasks(self, split: str = "eval") -> TaskList:
        files = [file for file in (self.path, self.answers) if file is not None]
        return _read(self.path, self.answers, tuple(file.stat().st_mtime_ns for file in files)).copy()

    def for_task(self, task: Task) -> Env:
        for function in task["functions"]:
            if function["name"] not in self.tools:
                self.tools.add(Tool(function["name"], function["description"], function["parameters"], _never))
        return self

    def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        self.for_task(task)
        self._task = task
        return [Message.model_validate(message) for message in task["messages"]]

    def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)

    def chance_of(self, tasks: Sequence[Task]) -> float | None:
        """The share of questions that nothing on offer helps with: one refusal is right for all of them."""
        without = sum(not task["expected"] for task in tasks)
        return without / len(tasks) if without else None

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"messages": task["messages"], "functions": task["functions"]})

    def state(self) -> None:
        """Nothing but the task."""

    def restore(self, task: Task, state: None) -> None:
        self.reset(task)

    @reward
    def correct(self, session: Session) -> float:
        """1 where the calls are those that are expected, no more and no fewer."""
        said = next((node.message for node in reversed(session.nodes) if node.message.role == "assistant"), None)
        try:
            made = [(call.function.name, parse_arguments(call)) for call in (said.tool_calls if said else None) or ()]
        except ToolArguments:
            return 0.0
        types = {function["name"]: function["parameters"] for function in self._task["functions"]}
        expected = [(name, allowed) for call in self._task["expected"] for name, allowed in call.items()]
        return float(said is not None and bool(made or has_visible(said.text)) and is_matched(made, expected, types))

    def expert(self, messages: Sequence[Message]) -> Message:
        """The expected calls, with the first right value of each argument."""
        calls = [
            ToolCall(id=f"call_{place}", function=FunctionCall(name=name, arguments=json.dumps(_first(allowed))))
            for place, call in enumerate(self._task["expected"])
            for name, allowed in call.items()
        ]
        if not calls:
            return Message(role="assistant", content="None of these functions can help.")
        return Message(role="assistant", tool_calls=calls)


async def _never(arguments: dict[str, Any], sandbox: Any) -> str:
    return ""


@lru_cache(maxsize=16)
def _read(path: Path, answers: Path | None, stamps: tuple[int, ...]) -> TaskList:
    """The tasks of a file; read again where `stamps`, the files' times, have changed."""
    right = {row.get("id"): row.get("ground_truth") for _, row in read_rows(answers)} if answers else {}
    tasks = []
    read, columns = set[str](), dict[str, None]()
    for number, row in read_rows(path):
        columns |= dict.fromkeys(row)
        try:
            tasks.append(_task(Row(row, read), right))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}, row {number}: no question of BFCL: {type(error).__name__}: {error}") from None
    if not tasks:
        raise ConfigError(f"{path}: the file holds no questions")
    expected = sum(bool(task["expected"]) for task in tasks)
    layouts = {"calls that are expected": expected, "questions that nothing helps with": len(tasks) - expected}
    found = {name: number for name, number in layouts.items() if number}
    return TaskList(tasks, [describe_content(str(path), len(tasks), "questions", found, columns.keys() - read)])


def _task(row: Mapping[str, Any], right: Mapping[Any, Any]) -> Task:
    turns, functions = row["question"], row.get("function")
    if len(turns) != 1 or not functions:
        raise ValueError("a question of several turns needs the leaderboard's own simulators")
    expected = row.get("ground_truth", right.get(row["id"]))
    if expected is None and "irrelevance" not in str(row["id"]):
        raise ValueError(f"{row['id']} has no answer; give the file with the answers: env.answers")
    offered = [
        {"name": api_name(f["name"]), "description": f.get("description", ""), "parameters": schema(f["parameters"])}
        for f in (functions if isinstance(functions, list) else [functions])
    ]
    calls = [{api_name(name): dict(allowed) for name, allowed in call.items()} for call in expected or ()]
    return Task(id=str(row["id"]), data={"messages": turns[0], "functions": offered, "expected": calls})


def api_name(name: str) -> str:
    """A function's name as APIs allow it: `math.factorial` is `math_factorial`."""
    return _NAME.sub("_", name)


def schema(given: Mapping[str, Any]) -> dict[str, Any]:
    """The format's schema as JSON schema."""
    found = {key: value for key, value in given.items() if key not in ("type", "properties", "items")}
    if (kind := given.get("type")) not in (None, "any"):
        found["type"] = TYPES.get(str(kind), kind)
    if isinstance(given.get("properties"), Mapping):
        found["properties"] = {name: schema(inner) for name, inner in given["properties"].items()}
    if isinstance(given.get("items"), Mapping):
        found["items"] = schema(given["items"])
    return found


def is_matched(made: Sequence[Call], expected: Sequence[Call], types: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether each call made is one of those expected, each of which is made once, in whatever order."""
    fits = [[at for at, call in enumerate(expected) if _fits(one, call, types.get(one[0], {}))] for one in made]
    held: dict[int, int] = {}  # which call made stands for each of those expected

    def place(one: int, tried: set[int]) -> bool:
        """Find one a place, for which others may move (Kuhn's algorithm: every order would be tried otherwise)."""
        for at in fits[one]:
            if at not in tried:
                tried.add(at)
                if at not in held or place(held[at], tried):
                    held[at] = one
                    return True
        return False

    return len(made) == len(expected) and all(place(one, set()) for one in range(len(made)))


def _fits(made: Call, expected: Call, parameters: Mapping[str, Any]) -> bool:
    if made[0] != expected[0]:
        return False
    given, allowed = made[1], expected[1]
    properties = parameters.get("properties", {})
    if not set(given) <= set(allowed) or not all(name in given or "" in values for name, values in allowed.items()):
        return False
    return all(_right(value, allowed[name], properties.get(name, {}).get("type")) for name, value in given.items())


def _right(value: Any, allowed: Sequence[Any], kind: str | None) -> bool:
    """Return whether a value is one of those allowed; a whole number is no text, and a fraction no whole number."""
    if kind == "integer" and not (isinstance(value, int) and not isinstance(value, bool)):
        return False
    return any(_same(value, each) for each in allowed)


def _same(value: Any, right: Any) -> bool:
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, int | float) and isinstance(right, int | float):
        return value == right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_same, value, right))
    if isinstance(value, Mapping) and isinstance(right, Mapping):  # of an object each field has its own right values
        complete = all(name in value or (isinstance(given, list) and "" in given) for name, given in right.items())
        return complete and all(name in right and _field(each, right[name]) for name, each in value.items())
    return value is None and right is None


def _field(value: Any, allowed: Any) -> bool:
    return any(_same(value, each) for each in allowed) if isinstance(allowed, list) else _same(value, allowed)


def _plain(text: str) -> str:
    """A text as it is compared; one of which nothing would be left stays as it is, or all such would be equal."""
    return (_IGNORED.sub("", text) or text).lower().replace("'", '"')


def _first(allowed: Mapping[str, Any]) -> dict[str, Any]:
    """The first right value of each argument that can't be left out."""
    found = {}
    for name, values in allowed.items():
        if isinstance(values, list) and "" in values:
            continue
        value = values[0] if isinstance(values, list) else values
        found[name] = _first(value) if isinstance(value, Mapping) else value
    return found

"""Rules about what an environment declares: its tasks and its tools."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from itertools import islice
from typing import Any

from agentrl.common.untrusted import safe_json
from agentrl.envs import calls
from agentrl.envs.base import lost_rewards, lost_tools
from agentrl.envs.check.subject import Subject
from agentrl.envs.data.identity import not_finite
from agentrl.envs.data.samples import sample
from agentrl.errors import AgentRLError, ToolError
from agentrl.sessions.tree.codec import same_task, whole_json
from agentrl.tools.tool import mark_of
from agentrl.types import Task

LISTED = 200
"""Tasks of each split that are compared with those of the others."""
COPIED = 0.5
"""The share of a split's tasks that may be equal to another: sampled ones are, now and then."""
FEW = 4
"""Tasks that a split must have to be judged by its copies."""
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The pattern that the OpenAI API takes for a function's name."""
TYPE_KEYS = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}


async def nonempty(subject: Subject) -> AsyncIterator[str]:
    """Every split has tasks.

    It also reads the tasks that the other rules check.
    """
    for split in subject.env.splits:
        try:
            listed, again = (list(islice(calls.tasks(env, split), LISTED)) for env in (subject.env, subject.make()))
        except AgentRLError as error:
            yield f"split {split!r}: {error}"
            continue
        subject.splits[split] = listed, again
        if not listed:
            yield f"split {split!r} is empty"


async def same_tasks(subject: Subject) -> AsyncIterator[str]:
    """Two instances give the same tasks in the same order."""
    for split, (listed, again) in subject.splits.items():
        for index, (one, other) in enumerate(zip(listed, again, strict=False)):
            if not same_task(one, other):
                words = f"{_show(one)} from one and {_show(other)} from the other"
                yield f"split {split!r}: two instances give different tasks, at index {index} {words}"
                break
        else:
            if len(listed) != len(again):
                counts = f"{len(listed)} and {len(again)}"
                yield f"split {split!r}: two instances give different tasks: {counts} of them"
        again = list(islice(calls.tasks(subject.env, split), LISTED))
        if len(again) != len(listed):
            counts = f"{len(again)} tasks, the first gave {len(listed)}"
            yield f"split {split!r}: the second call of tasks on one instance gives {counts}"


async def task_ids(subject: Subject) -> AsyncIterator[str]:
    """Every task of a split has a unique id."""
    for split, (listed, _) in subject.splits.items():
        seen: set[str] = set()
        for index, task in enumerate(listed):
            if task.id in seen:
                yield f"split {split!r}: two tasks have the same id, {task.id!r} (the second at index {index})"
                break
            seen.add(task.id)


async def copies(subject: Subject) -> AsyncIterator[str]:
    """Most tasks of a split differ in more than their ids."""
    for split, (listed, _) in subject.splits.items():
        contents = Counter(key for task in listed if (key := _content(task)) is not None)
        copied = sum(number for number in contents.values() if number > 1)
        if len(listed) >= FEW and copied > COPIED * len(listed):
            task = next(task for task in listed if contents[_content(task) or ""] > 1)
            yield f"split {split!r}: {copied} of {len(listed)} tasks are copies but for their ids: {_show(task)}"


async def task_data(subject: Subject) -> AsyncIterator[str]:
    """Tasks can be stored and read back."""
    for split, (listed, _) in subject.splits.items():
        for task in listed:
            try:
                whole_json(task.data)
                problem = f"has {odd}, which JSON reads back as null" if (odd := not_finite(task.data)) else ""
            except TypeError as error:
                problem = f"can't be stored as JSON ({error})"
            if problem:
                yield f"split {split!r}: task {task.id!r} {problem}"
                break


async def marks(subject: Subject) -> AsyncIterator[str]:
    """No method has lost its @agentrl.tool or @agentrl.reward."""
    cls: Any = type(subject.env.unwrapped)
    for words in (*lost_tools(cls), *lost_rewards(cls)):
        yield words


async def tool_schemas(subject: Subject) -> AsyncIterator[str]:
    """Every tool has a name, a description and a schema that matches what it accepts."""
    try:
        tools = list(subject.env.tools)
    except AgentRLError as error:
        yield str(error)
        return
    for tool in tools:
        if not TOOL_NAME.fullmatch(tool.name):
            yield f"{tool.name!r} is not a valid name of a tool: letters, digits, _ and -, at most 64"
        if not tool.description:
            yield f"{tool.name!r} has no docstring: the model gets no description of it"
        try:
            if json.loads(json.dumps(tool.schema)) != tool.schema:
                yield f"{tool.name!r}: its schema changes in a JSON round trip"
            tool.check(json.loads(json.dumps(sample(tool.parameters))))
        except (TypeError, ValueError, ToolError) as error:
            yield f"{tool.name!r} rejects arguments that fit its own schema: {error}"


async def parameter_types(subject: Subject) -> AsyncIterator[str]:
    """Every parameter of a tool has a type."""
    written = _written_without_types(subject)
    for tool in subject.env.tools:
        for name, schema in tool.parameters.get("properties", {}).items():
            bare = not (TYPE_KEYS & set(schema)) and "description" not in schema
            if bare if tool.name not in written else name in written[tool.name]:
                yield f"parameter {name!r} of tool {tool.name!r} has no type: its schema does not say what is allowed"


def _written_without_types(subject: Subject) -> dict[str, set[str]]:
    """The parameters without a type hint, by tool, of the tools that are the environment's own methods."""
    found: dict[str, set[str]] = {}
    env = subject.env.unwrapped
    for attribute in dir(type(env)):
        mark = mark_of(getattr(type(env), attribute, None))
        if mark is not None:
            parameters = inspect.signature(mark.function).parameters.items()
            found[mark.name] = {name for name, one in parameters if one.annotation is inspect.Parameter.empty}
    return found


def _content(task: Task) -> str | None:
    """A task's data as a key for comparisons, without its id."""
    data = {key: value for key, value in task.data.items() if key not in ("id", "split")}
    return _write(data) if data else None


def _write(data: Any) -> str:
    """Data as it is stored; what can't be as its `repr`."""
    return json.dumps(safe_json(data, whole=True, integers=True), sort_keys=True)


def _show(task: Task) -> str:
    data: Mapping[str, Any] = task.data
    text = f"{task.id!r} {data}" if data else repr(task.id)
    return text if len(text) <= 120 else text[:119] + "…"

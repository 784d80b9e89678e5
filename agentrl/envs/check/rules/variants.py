"""Rules about tools that are called in other ways: without optional arguments, and again in another instance."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from agentrl.envs.base import Env
from agentrl.envs.check.subject import VARYING, Episode, Subject, functions
from agentrl.envs.data.samples import sample
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, ToolCall, parse_arguments

RAISING = 2
"""Calls in one form that must all have raised."""
FORMS = 8
"""Forms in which a tool is called at most: without optional arguments, and with each of them."""


async def optional_arguments(subject: Subject) -> AsyncIterator[str]:
    """Tools work without their optional arguments, and with each of them."""
    known = _known_calls(subject)
    raised: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    works = set[str]()
    for task in subject.tasks:
        subject.varying = _varying(known.get(task.id, {}))
        episode = await subject.play(task, VARYING, 0)
        if episode.session is None:
            continue
        for name, given, words in _outcomes(episode):
            if words:
                raised[name, given].append(words)
            else:
                works.add(name)
                raised[name, given] += [""]
    for (name, given), outcomes in raised.items():
        if name in works and len(outcomes) >= min(RAISING, len(subject.tasks)) and all(outcomes):
            form = f"with {', '.join(given)} alone" if given else "without arguments"
            yield f"tool {name!r} raised at every one of {len(outcomes)} calls {form}: {outcomes[0]}"


async def defaults(subject: Subject) -> AsyncIterator[str]:
    """No default of a parameter is changed.

    One list or mapping is shared by all calls.
    """
    for name, function in functions(type(subject.env.unwrapped)):
        for parameter in inspect.signature(function).parameters.values():
            value = parameter.default
            if isinstance(value, (list, dict, set)) and value and (name, parameter.name) in subject.empty_defaults:
                shown = repr(value)[:60]
                yield f"the default of {parameter.name!r} in {name} is shared by all calls, and has grown to {shown}"


def _known_calls(subject: Subject) -> dict[str, dict[str, dict[str, Any]]]:
    """The arguments with which the default agent called each tool last, by task."""
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for episode, session in subject.played():
        if episode.agent == subject.default:
            for node in session.nodes:
                for call in node.message.tool_calls or ():
                    found[episode.task.id][call.function.name] = parse_arguments(call)
    return found


def _varying(known: Mapping[str, dict[str, Any]]) -> Any:
    """Calls every tool in each form, with the arguments that are known to fit."""

    def policy(env: Env, messages: Sequence[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        made = [(tool, form) for tool in env.tools for form in _forms(tool, known.get(tool.name))]
        if said >= len(made):
            return Message(role="assistant", content="")
        tool, form = made[said]
        function = FunctionCall(name=tool.name, arguments=json.dumps(form))
        return Message(role="assistant", tool_calls=[ToolCall(id=f"vary_{said}", function=function)])

    return policy


def _forms(tool: Tool, known: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    fields: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = set(tool.parameters.get("required", ()))
    optional = [name for name in fields if name not in required][: FORMS - 1]
    base = {**dict(sample(tool.parameters)), **{k: v for k, v in (known or {}).items() if k in required}}
    yield base
    if not optional:
        return
    definitions = tool.parameters.get("$defs", {})
    for name in optional:
        schema = {key: value for key, value in fields[name].items() if key != "default"}
        yield {**base, name: (known or {}).get(name, sample({**schema, "$defs": definitions}))}


def _outcomes(episode: Episode) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each call's tool, which arguments it had, and what it raised."""
    failures = defaultdict(list)
    for failure in episode.failures:
        failures[failure.tool].append(f"{failure.error}{f' at {failure.place}' if failure.place else ''}")
    nodes = episode.require_session().nodes
    asked = {call.id: call for node in nodes for call in node.message.tool_calls or ()}
    for node in nodes:
        message = node.message
        if message.role == "tool" and message.tool_call_id in asked:
            call = asked[message.tool_call_id]
            name, error = call.function.name, message.text.startswith("Error:")
            words = failures[name].pop(0) if error and failures[name] else ""
            yield name, tuple(parse_arguments(call)), words

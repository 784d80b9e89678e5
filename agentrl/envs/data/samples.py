"""Arguments that fit a JSON schema, and an agent that makes calls with them: for trying unknown tools."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.envs.base import Env
from agentrl.envs.episode import ScriptedPolicy
from agentrl.errors import ToolError
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, ToolCall

MAX_DEPTH = 20
SAMPLED_TURNS = 6
"""Turns that `sampled_policy` takes before its messages are empty."""
SAYING = 0.1
"""The probability that `random_policy` writes a word in place of calling a tool, which ends most episodes."""
MAX_READ = 10_000
"""Characters of a message that it takes words from."""
_WORD = re.compile(r"\w+")
SHELL = frozenset({"time", "times", "history", "jobs", "exec", "kill", "ulimit", "umask"})
"""Words that a shell itself runs, and does something with that is seen beyond the call, or another time."""
MANY_CALLS = 10
HOSTILE_TEXTS = (
    "",
    " ",
    "\0\x1b[2J\u202e",
    "A" * 200_000,
    "word " * 2_000,
    "' OR 1=1; DROP TABLE orders; --",
    "../../../../etc/passwd",
    "<script>alert(1)</script><|im_end|></tool_call>",
    "{{7*7}} %s %n {0.__class__} $(id)",
    "(a+)+$",
    "-1e999",
    "\ud83d\ud800",
    "٣٤",
)
"""Harmless where they are run by a shell, since a sandbox may isolate nothing."""
HOSTILE_NUMBERS = (-1, 2**31, 10**18, -(10**40), 0.5, 1e308, float("nan"), float("inf"))
MALFORMED = ("", "{", "[]", "null", "NaN", '"text"', "9" * 5_000, '{"a":' * 20_000, "{'a': 1}", '{"a": 1}{"a": 2}')
"""Arguments that are no JSON object, or one that is nested too deeply."""


def sampled_policy(env: Env, messages: Sequence[Message]) -> Message:
    """Calls the tools in turn, with arguments made up from their schemas, then writes empty messages."""
    said = sum(message.role == "assistant" for message in messages)
    tools = list(env.tools)
    if said >= SAMPLED_TURNS or not tools:
        return Message(role="assistant", content="")
    tool = tools[said % len(tools)]
    function = FunctionCall(name=tool.name, arguments=json.dumps(sample(tool.parameters)))
    return Message(role="assistant", tool_calls=[ToolCall(id=f"call_{said}", function=function)])


def random_policy(seed: int) -> ScriptedPolicy:
    """An agent that calls tools at random, with words and numbers of the conversation as arguments, or says one."""

    def policy(env: Env, messages: Sequence[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        rng = random.Random(f"{seed}/{said}/{messages[0].text[:MAX_READ]}")
        tools, words = list(env.tools), words_of(messages)
        if not tools or rng.random() < SAYING:
            return Message(role="assistant", content=rng.choice(words))
        return random_call(rng, rng.choice(tools), messages, f"call_{said}")

    return policy


def random_call(rng: random.Random, tool: Tool, messages: Sequence[Message], call_id: str) -> Message:
    """A valid call of a tool, with words and numbers of the conversation as arguments."""
    arguments = _draw(rng, tool.parameters, tool.parameters.get("$defs", {}), words_of(messages), MAX_DEPTH)
    try:
        tool.check(json.loads(json.dumps(arguments)))
    except (ToolError, TypeError, ValueError):
        arguments = sample(tool.parameters)
    function = FunctionCall(name=tool.name, arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=[ToolCall(id=call_id, function=function)])


def words_of(messages: Sequence[Message]) -> list[str]:
    """Words of a conversation, but for those that a shell would run as programs: a sandbox may isolate nothing."""
    path = os.environ.get("PATH", os.defpath)
    return [word for message in messages for word in _words(message.text[:MAX_READ], path)] or ["a"]


@functools.lru_cache(maxsize=256)  # each turn reads the whole conversation
def _words(text: str, path: str) -> tuple[str, ...]:
    return tuple(word for word in _WORD.findall(text) if word not in SHELL and not _is_program(word, path))


@functools.cache
def _is_program(word: str, path: str) -> bool:
    return shutil.which(word, path=path) is not None


def hostile_policy(seed: int) -> ScriptedPolicy:
    """An agent of malformed, hostile and huge calls and texts: what a broken model may write."""

    def policy(env: Env, messages: Sequence[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        rng = random.Random(f"hostile/{seed}/{said}/{messages[0].text[:MAX_READ]}")
        if not len(env.tools) or rng.random() < SAYING:
            return Message(role="assistant", content=rng.choice(HOSTILE_TEXTS))
        number = rng.choice((1, 1, 1, 2, MANY_CALLS))
        calls = [_hostile_call(rng, env, f"call_{said}_{place}") for place in range(number)]
        return Message(role="assistant", content=rng.choice(("", HOSTILE_TEXTS[0])), tool_calls=calls)

    return policy


def _hostile_call(rng: random.Random, env: Env, call_id: str) -> ToolCall:
    tool = rng.choice(list(env.tools))
    name, error, kind = tool.name, None, rng.random()
    if kind < 0.6:  # fits the schema, mostly, with hostile values
        drawn = _draw(rng, tool.parameters, tool.parameters.get("$defs", {}), HOSTILE_TEXTS, MAX_DEPTH)
        arguments = json.dumps(_distort(rng, drawn))
    elif kind < 0.7:
        arguments = json.dumps({**sample(tool.parameters), "no_such_argument": rng.choice(HOSTILE_TEXTS)})
    elif kind < 0.85:
        arguments = rng.choice(MALFORMED)
    elif kind < 0.95:
        name, arguments = rng.choice(("", "../tool", "__class__", "run_tools", "x" * 10_000)), "{}"
    else:
        arguments, error = rng.choice(MALFORMED), "not a call"
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments), error=error)


def _distort(rng: random.Random, value: Any) -> Any:
    """The value with some of its numbers too large, and some values of another type."""
    if isinstance(value, dict):
        return {key: _distort(rng, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_distort(rng, each) for each in value] * rng.choice((1, 1, MANY_CALLS))
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice(HOSTILE_NUMBERS)
    return rng.choice((None, [], {}, 0, "", True, [[value]])) if rng.random() < 0.1 else value


def _draw(
    rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any], words: Sequence[str], depth: int
) -> Any:
    if depth == 0:
        return None
    if "$ref" in schema:
        return _draw(rng, defs.get(str(schema["$ref"]).rpartition("/")[2], {}), defs, words, depth - 1)
    for key in ("enum", "anyOf", "oneOf"):
        if schema.get(key):
            choice = rng.choice(schema[key])
            return choice if key == "enum" else _draw(rng, choice, defs, words, depth - 1)
    kind = schema.get("type")
    if kind == "object":
        required = set(schema.get("required", ()))
        chosen = [name for name in schema.get("properties", {}) if name in required or rng.random() < 0.5]
        return {name: _draw(rng, schema["properties"][name], defs, words, depth - 1) for name in chosen}
    if kind == "array" and "prefixItems" not in schema:
        least = schema.get("minItems", 0)
        count = rng.randint(least, max(least, min(3, schema.get("maxItems", 3))))
        return [_draw(rng, schema.get("items", {}), defs, words, depth - 1) for _ in range(count)]
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        numbers = [int(word) for word in words if word.isdigit() and len(word) < 10]
        return rng.choice([*numbers, *range(-2, 12)])
    if kind == "string" or kind is None:
        return rng.choice(words)
    return sample({**schema, "$defs": defs})


def sample(schema: Mapping[str, Any]) -> Any:
    """The simplest value that fits: required properties only, the first choice, the least number.

    Args:
        schema: as pydantic writes them; `$ref` is looked up in its own `$defs`.
    """
    return _sample(schema, schema.get("$defs", {}), MAX_DEPTH)


def _sample(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    if depth == 0:
        return None
    if "$ref" in schema:
        return _sample(defs.get(str(schema["$ref"]).rpartition("/")[2], {}), defs, depth - 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0], defs, depth - 1)
    return _of_type(schema, defs, depth)


def _of_type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), defs, depth - 1) for name in schema.get("required", ())}
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})] * schema.get("minItems", 0)
        return [_sample(item, defs, depth - 1) for item in items]
    if kind == "string":
        return "a" * max(1, schema.get("minLength", 1))
    if kind in ("integer", "number"):
        return _number(schema)
    return {"boolean": False, "null": None}.get(str(kind), "a")


def _number(schema: Mapping[str, Any]) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None:
        return low + 1 if "exclusiveMinimum" in schema and "minimum" not in schema else low
    if high is not None and high < 1:
        return high - 1 if "exclusiveMaximum" in schema and "maximum" not in schema else high
    return 1

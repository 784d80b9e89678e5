"""Tool calls as lines that a person types, and messages as lines that a person reads."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.common import pictures
from agentrl.envs.base import Env
from agentrl.errors import ConfigError, InvalidInput, unknown_name
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, ToolCall


def call_of(line: str, env: Env, call_id: str) -> Message:
    """The message that calls a tool, of a line such as `price tea` or `price item=tea limit=3`.

    Raises:
        UnknownName: there is no such tool.
        ConfigError: the arguments can't be read.
    """
    name, _, rest = line.partition(" ")
    tool = next((tool for tool in env.tools if tool.name == name), None)
    if tool is None:
        raise unknown_name("tool", name, env.tools.names)
    written = rest.strip() if rest.strip().startswith("{") else json.dumps(_arguments(tool, rest), ensure_ascii=False)
    function = FunctionCall(name=name, arguments=written)
    return Message(role="assistant", tool_calls=[ToolCall(id=call_id, function=function)])


def _arguments(tool: Tool, text: str) -> dict[str, Any]:
    """Arguments of words: `key=value`, and those without a key in the order of the parameters."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"the arguments of {tool.name!r} can't be read: {error}") from None
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in properties:
            left = [name for name in properties if name not in found]
            if not left:
                raise ConfigError(f"{tool.name!r} takes {len(properties)} arguments: {signature(tool)}")
            key, value = left[0], word
        found[key] = _value(value, properties[key])
    return found


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of a word: text where the schema says so, else JSON where it is some."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def signature(tool: Tool) -> str:
    """A tool in a line: its name, parameters with types, and what it does."""
    required = set(tool.parameters.get("required", ()))
    parts = [
        f"{name}{'' if name in required else '?'}: {_type(schema)}"
        for name, schema in tool.parameters.get("properties", {}).items()
    ]
    return f"/{tool.name}({', '.join(parts)})  {tool.description.splitlines()[0] if tool.description else ''}".rstrip()


def _type(schema: Mapping[str, Any]) -> str:
    return "|".join(map(str, schema.get("enum", ()))) or str(schema.get("type", "any"))


def shown(message: Message) -> list[str]:
    """A message in lines, with its tool calls as a player writes them, and files with its images."""
    made = [f"/{call.function.name} {call.function.arguments}" for call in message.tool_calls or ()]
    who = f"{message.role} {message.name}" if message.role == "tool" and message.name else message.role
    seen = [_file(url) for url in message.images]
    text = "\n".join([*([message.text] if message.text else []), *seen, *made])
    return f"[{who}] {text}".split("\n")


def _file(url: str) -> str:
    """An image in words, and where a person can look at it."""
    try:
        picture = pictures.picture(url)
    except InvalidInput as error:
        return f"(an image that can't be shown: {error})"
    name = f"{hashlib.sha256(url.encode()).hexdigest()[:12]}.png"
    picture.save(file := _folder() / name, "PNG")
    return f"(an image of {picture.width} x {picture.height}: {file})"


@functools.cache
def _folder() -> Path:
    """The folder of this process's images: another one each time, which nobody else can write to."""
    return Path(tempfile.mkdtemp(prefix="agentrl-play-"))

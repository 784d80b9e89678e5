"""Comparison of a message that a client sends back with a stored one.

Clients resend messages in their own formatting: without the reasoning, without the text beside calls, with other white
space in a call's arguments, with defaults of the tool's schema filled in, with text of their own appended.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import Any

import orjson

from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FinishReason, Message, Node


def strict_key(message: Message) -> Hashable:
    """A key that only identical messages share."""
    calls = tuple((c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    reasoning = message.reasoning_content or ""
    return message.role, _comparable_text(message), reasoning, calls, message.tool_call_id, message.name


def loose_key(message: Message) -> tuple[Hashable, ...]:
    """A key of what every client keeps of a message: role, text, images and calls."""
    calls = tuple((c.function.name, _canonical(c.function.arguments)) for c in message.tool_calls or ())
    shown = _comparable_text(message)
    return message.role, shown.strip() if isinstance(shown, str) else shown, calls


def _comparable_text(message: Message) -> str | tuple[str, ...]:
    """A message's text; with images, its pieces in order."""
    if not message.images:
        return message.text
    assert isinstance(message.content, list)
    return tuple(part.image or part.text or "" for part in message.content)


def same_calls(echo: Message, stored: Message, tools: Sequence[ToolSchema]) -> bool:
    """Return whether an echo is a stored turn with calls, but for what its client left out or filled in.

    The gateway makes the calls' ids, so they tell the turn. Some clients keep the calls alone, without text and
    reasoning beside them. Others validate a call against the tool's schema and send back the result: it may have
    arguments that the model did not write, each the default that the tool declares.
    """
    if echo.role != stored.role or echo.text.strip() not in ("", stored.text.strip()):
        return False
    if not echo.tool_calls or _call_ids(echo) != _call_ids(stored):
        return False
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    for sent, original in zip(echo.tool_calls, stored.tool_calls or (), strict=True):
        name = original.function.name
        if sent.function.name != name:
            return False
        if _canonical(sent.function.arguments) == _canonical(original.function.arguments):
            continue
        given, generated = _object(sent.function.arguments), _object(original.function.arguments)
        if given is None or generated is None:
            return False
        if given != {**_defaults(schemas.get(name), given.keys() - generated.keys()), **generated}:
            return False
    return True


def _defaults(schema: Any, names: Set[str]) -> dict[str, Any]:
    """The default of each of these arguments that has one."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared = {name: properties.get(name) for name in names} if isinstance(properties, dict) else {}
    return {name: one["default"] for name, one in declared.items() if isinstance(one, dict) and "default" in one}


def _object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None if they are not a JSON object."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def extends(echo: Message, turn: Node) -> bool:
    """Return whether an echo is a turn's message with text appended; it may leave out the reasoning."""
    stored = turn.message
    same_calls = loose_key(echo)[-1] == loose_key(stored)[-1]
    same_reasoning = echo.reasoning_content in (None, "", stored.reasoning_content)
    if not same_calls or not same_reasoning or turn.finish_reason is not FinishReason.STOP:
        return False
    return bool(stored.text.strip()) and echo.text.lstrip().startswith(stored.text.lstrip())


def _call_ids(message: Message) -> tuple[str, ...]:
    return tuple(call.id for call in message.tool_calls or ())


def _canonical(arguments: str) -> str | bytes:
    try:
        return orjson.dumps(orjson.loads(arguments or "{}"), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):
        return arguments.strip()

"""Messages as the plain mappings that chat templates and the `renderers` package expect."""

from __future__ import annotations

import json
from typing import Any

from agentrl.sessions.renderers.calls import canonical
from agentrl.sessions.renderers.guard import MarkupGuard
from agentrl.sessions.renderers.turns import text_of
from agentrl.types import Message, Part


def as_wire(
    message: Message, guard: MarkupGuard, *, arguments_as_text: bool = False, parts: bool = False
) -> dict[str, Any]:
    """One message as a mapping, its texts guarded.

    Args:
        message: the message.
        guard: breaks up markup in its texts.
        arguments_as_text: whether a call's arguments stay JSON text; templates want a mapping.
        parts: whether content is a list of texts and images, as templates of models that see images want it.

    A malformed call has no mapping: its raw text is appended to the content, as the model wrote it.
    """
    good = [call for call in message.tool_calls or () if call.function.name]
    raw = "".join(call.function.arguments for call in message.tool_calls or () if not call.function.name)
    wire: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _parts(message, raw, guard) if parts else guard.text(text_of(message, "this format") + raw),
    }
    if message.reasoning_content:
        wire["reasoning_content"] = guard.text(message.reasoning_content)
    if good:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": guard.text(call.function.name),
                    "arguments": _arguments(call.function.arguments, guard, as_text=arguments_as_text),
                },
            }
            for call in good
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = guard.text(message.tool_call_id)
    if message.name is not None:
        wire["name"] = guard.text(message.name)
    return wire


def _parts(message: Message, raw: str, guard: MarkupGuard) -> list[dict[str, str]]:
    content = message.content if isinstance(message.content, list) else [Part(type="text", text=message.text)]
    content = [*content, Part(type="text", text=raw)] if raw else content
    return [
        {"type": "text", "text": guard.text(part.text or "")} if part.image is None else {"type": "image"}
        for part in content
    ]


def _arguments(arguments: str, guard: MarkupGuard, *, as_text: bool) -> Any:
    if as_text:
        return guard.text(canonical(arguments))
    try:
        return guard.value(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return guard.text(arguments)

"""Custom tools of OpenAI's protocols, whose input is text in a form of the client's own, where a function has JSON.

A model is offered one as a function of a single text, and its call is returned as the client expects it. A grammar
for the input is in the text's description and not enforced: what is sampled under a grammar can't be trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.sessions.gateway.wire.objects import function_of, object_at
from agentrl.types import ToolCall


def names_of(tools: Iterable[Any]) -> frozenset[str]:
    """The names of the custom ones among these tools."""
    return frozenset(_declared(tool)["name"] for tool in tools if tool.get("type") == "custom")


def grammars(tools: Iterable[Any]) -> bool:
    """Return whether one of these tools wants its input in a grammar's form."""
    return any(tool.get("type") == "custom" and _grammar(_declared(tool)) for tool in tools)


def as_function(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A custom tool as a function of one text.

    Raises:
        ApiError: it is not declared as one; `where` is its place in the request.
    """
    declared = object_at(tool.get("custom", tool), where)
    form = _grammar(declared)
    said = f"Text of this {form.get('syntax')} grammar:\n{form.get('definition')}" if form else None
    described = {"type": "string"} if said is None else {"type": "string", "description": said}
    parameters = {"type": "object", "properties": {"input": described}, "required": ["input"]}
    return function_of({**declared, "parameters": parameters}, where)


def arguments_of(text: str) -> str:
    """A custom call's input as the arguments of the function that it is to the model."""
    return json.dumps({"input": text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The text that a call's arguments hold; the arguments themselves where they hold none."""
    try:
        text = json.loads(arguments)["input"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments


def item(item_id: str, call: ToolCall, begun: bool = False) -> dict[str, Any]:
    """A custom call as an item of a reply."""
    function = call.function
    text = "" if begun else input_of(function.arguments)
    return {"id": item_id, "type": "custom_tool_call", "call_id": call.id, "name": function.name, "input": text}


def _declared(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool's declaration: Chat Completions has it one level further in."""
    declared: Mapping[str, Any] = tool.get("custom", tool)
    return declared


def _grammar(declared: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = declared.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return None
    grammar = form.get("grammar", form)
    return grammar if isinstance(grammar, dict) else None

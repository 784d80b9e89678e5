"""Readers of the objects that a conversation is made of: what is used is validated, what is not is passed over.

The SDKs' own types demand fields that nothing here reads (an item's `status`, a text's `annotations`), and clients
leave those out. They also lag behind the protocols. So a field that is not read is ignored and counted, unless it would
change the text, or is spelt nearly like one that is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.wire.fields import find_misspelt
from agentrl.sessions.gateway.wire.validation import MOST_FIELDS, header_name
from agentrl.sessions.renderers.calls import is_name

CHANGE_MESSAGES = frozenset({"audio", "function_call", "partial", "prefill", "prefix", "refusal"})
"""Fields of messages that change what the model reads or continues, and that nothing here reads."""


def object_at(value: Any, where: str) -> Mapping[str, Any]:
    """An object, without the fields that are null; ApiError where it is none."""
    if not isinstance(value, dict):
        raise ApiError(400, f"{where}: must be an object", "invalid_value", where)
    return {name: one for name, one in value.items() if one is not None}


def text_at(item: Mapping[str, Any], name: str, where: str) -> str:
    """A field that must be there, and text; ApiError where it is missing, or something else."""
    value = item.get(name)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{name}: must be text", "invalid_value", f"{where}.{name}")
    return value


def function_of(tool: Mapping[str, Any], where: str, parameters: str = "parameters") -> dict[str, Any]:
    """A function as a model is offered it: what else a client declares of it is not the model's to know.

    Args:
        tool: has the function's name, description and parameters.
        where: its place in the request.
        parameters: the field that holds the parameters' schema.

    Raises:
        ApiError: one is something else.
    """
    function: dict[str, Any] = {"name": text_at(tool, "name", where)}
    if not is_name(function["name"]):
        why = "must have characters, all printable and none a blank: formats read no other name in a call"
        raise ApiError(400, f"{where}.name={function['name']!r:.100} {why}", "invalid_value", f"{where}.name")
    if "description" in tool:
        function["description"] = text_at(tool, "description", where)
    if parameters in tool:
        schema, place = tool[parameters], f"{where}.{parameters}"
        if not isinstance(schema, dict):
            raise ApiError(400, f"{place}: must be an object", "invalid_value", place)
        function["parameters"] = schema
    return function


def strict_of(tools: Sequence[Any]) -> frozenset[str]:
    """The names of the functions whose calls must fit their schemas (`strict`), of tools in any protocol's form."""
    functions = (tool.get("function", tool) for tool in tools if isinstance(tool, dict))
    return frozenset(str(one.get("name")) for one in functions if isinstance(one, dict) and one.get("strict") is True)


def texts_at(item: Mapping[str, Any], name: str, where: str, kinds: Set[str]) -> str:
    """A field that must be there: text, or parts of text, which are put together.

    Args:
        item: has the field.
        name: the field's.
        where: the item's place in the request; "" is the request itself.
        kinds: the types of parts that are text; one without a type is text too.

    Raises:
        ApiError: it is missing, something else, or has a part that is no text.
    """
    content, place = item.get(name), f"{where}.{name}" if where else name
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{place}: must be text, or a list of its parts", "invalid_value", place)
    texts = []
    for number, part in enumerate(content):
        at = f"{place}[{number}]"
        part = object_at(part, at)
        if part.get("type", "text") not in kinds:
            raise refuse_parameter(f"{at}.type", f"{part.get('type')!r:.100}; this model takes text only")
        texts.append(text_at(part, "text", at))
    return "".join(texts)


def pass_over(
    item: Mapping[str, Any], read: Set[str], echoed: Set[str], where: str, ignored: dict[str, str], strict: bool
) -> None:
    """Note the fields that nothing reads.

    Args:
        item: has the fields.
        read: those that are read.
        echoed: those that repeat what we sent, or that clients add to it.
        where: the item's place in the request.
        ignored: takes the others, each with the name to count it under.
        strict: whether they are refused.

    Raises:
        ApiError: there is one that would change the text or may be meant for one that is read, or `strict` is set.
    """
    for name, value in item.items():
        if name in read or name in echoed or value in (None, False, [], {}, ""):
            continue
        if (key := header_name(name)) in ignored:
            continue
        near = find_misspelt(name, frozenset(read))
        if strict or near is not None or name in CHANGE_MESSAGES or len(ignored) >= MOST_FIELDS:
            raise refuse_parameter(f"{where}.{name[:100]}", "" if near is None else f"did you mean {near!r}?")
        ignored[key] = "unknown"

"""Tool calls as text: canonical JSON on the way out, the model's exact text on the way in.

Arguments that are written follow the separators of Python's `json.dumps` without escaping (what `tojson` gives in
Hugging Face's chat templates, and so what the models were trained on). Arguments that are read keep the model's
exact text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.grammar import malformed
from agentrl.types import FunctionCall, ToolCall

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def dumps(value: Any) -> str:
    """JSON as Hugging Face's `tojson` writes it: ", " and ": ", characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def canonical(arguments: str) -> str:
    """Arguments in canonical spelling; what is no JSON stays as it is."""
    try:
        return dumps(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments


def hermes_body(call: ToolCall) -> str:
    """A call as Hermes and Qwen write it; a malformed one as its raw text."""
    if call.error is not None and not call.function.name:
        return call.function.arguments.removeprefix("\n").removesuffix("\n")
    return f'{{"name": {dumps(call.function.name)}, "arguments": {canonical(call.function.arguments)}}}'


def read_hermes(body: Sequence[str], index: int, tools: Sequence[ToolSchema]) -> list[ToolCall]:
    """One call: {"name": …, "arguments": {…}}."""
    return [read_json_call("".join(body), index, ("arguments", "parameters"))]


def read_json_call(text: str, index: int, keys: tuple[str, ...] = ("arguments",)) -> ToolCall:
    """A call from a JSON object; its arguments are the exact slice of the text. Never raises.

    Args:
        text: what should be one JSON object.
        index: which call of the turn this is.
        keys: the keys that may hold the arguments.
    """
    try:
        members = object_members(text)
        if "name" not in members:
            return malformed(text, index, 'it has no "name"')
        name, spelt = members["name"]
        if not isinstance(name, str) or not is_name(name):
            return malformed(text, index, f'its "name" is not the name of a tool: {spelt[:80]}')
        key = next((key for key in keys if key in members), None)
        arguments, raw = members[key] if key is not None else ({}, "{}")
        if not isinstance(arguments, dict):
            return malformed(text, index, f'its "{key}" are not a JSON object: {raw[:80]}')
    except (ValueError, RecursionError) as error:
        return malformed(text, index, f"it is not valid JSON ({error})")
    return ToolCall(id=f"call_{index}", function=FunctionCall(name=name, arguments=raw))


def object_members(text: str) -> dict[str, tuple[Any, str]]:
    """The members of a JSON object: each value, and its exact text.

    Raises:
        ValueError: the text is not one JSON object.
        RecursionError: it nests too deeply for Python's decoder.
    """
    at = _skip(text, 0)
    at = _expect(text, at, "{")
    members: dict[str, tuple[Any, str]] = {}
    while text[at : at + 1] != "}":
        if members:
            at = _expect(text, at, ",")
        if text[at : at + 1] != '"':
            raise ValueError(f"expected a quoted key at character {at}")
        key, at = _DECODER.raw_decode(text, at)
        at = _expect(text, _skip(text, at), ":")
        value, end = _DECODER.raw_decode(text, at)
        members[key] = value, text[at:end]
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"something follows the object at character {at + 1}")
    return members


def array_slices(text: str) -> list[str]:
    """The items of a JSON array, each as its exact text.

    Raises:
        ValueError: the text is not one JSON array.
        RecursionError: it nests too deeply for Python's decoder.
    """
    at = _expect(text, _skip(text, 0), "[")
    items: list[str] = []
    while text[at : at + 1] != "]":
        if items:
            at = _expect(text, at, ",")
        _, end = _DECODER.raw_decode(text, at)
        items.append(text[at:end])
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"something follows the array at character {at + 1}")
    return items


def is_name(name: str) -> bool:
    """Return whether this can be a tool's name: printable, no white space, encodable."""
    return bool(name) and name.isprintable() and " " not in name


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise ValueError(f"expected {char!r} at character {at}")
    return _skip(text, at + 1)

"""JSON Schema as the TypeScript-like declarations that Harmony lists tools in (OpenAI's guide to the format).

OpenAI's own encoder is followed to the letter, its quirks included, but for unions (`anyOf`, `oneOf`): it calls the
first `any` and gives the second a line for each member; here both are spelt out on one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_NAMES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def declare(function: Mapping[str, Any]) -> str:
    """One tool: its description as comments, its parameters as a type."""
    comments = "".join(f"// {line}\n" for line in str(function.get("description") or "").splitlines())
    parameters = function.get("parameters") or {}
    if not parameters.get("properties"):
        return f"{comments}type {function['name']} = () => any;"
    return f"{comments}type {function['name']} = (_: {{\n{_members(parameters)}}}) => any;"


def _members(schema: Mapping[str, Any], indent: str = "") -> str:
    required = schema.get("required") or ()
    lines = []
    for name, field in (schema.get("properties") or {}).items():
        lines.append(_comments(field, indent))
        mark = "" if name in required else "?"
        default = f", // default: {_default(field)}" if "default" in field else ","
        kind = _type(field, indent + "    ")
        null = " | null" if field.get("nullable") and "null" not in kind else ""
        lines.append(f"{indent}{name}{mark}: {kind}{null}{default}\n")
    return "".join(lines)


def _type(schema: Any, indent: str) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    kind = schema.get("type")
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(_type(option, indent) for option in options)
    if schema.get("enum") and kind in ("string", None):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}, indent) for one in kind)
    if kind == "array":
        return f"{_type(schema['items'], indent)}[]" if schema.get("items") else "Array<any>"
    if kind == "object":
        return f"{_comment(schema, indent)}{{\n{_members(schema, indent)}{indent}}}"
    return _NAMES.get(str(kind), "any")


def _comments(field: Mapping[str, Any], indent: str) -> str:
    """The comments above a member: its title, its description, its examples."""
    title = f"{indent}// {field['title']}\n{indent}//\n" if field.get("title") else ""
    examples = "".join(f'{indent}// - "{text}"\n' for text in field.get("examples") or () if isinstance(text, str))
    return title + _comment(field, indent) + (f"{indent}// Examples:\n{examples}" if examples else "")


def _comment(schema: Mapping[str, Any], indent: str) -> str:
    """A description; OpenAI's encoder marks its first line alone as a comment, and writes an object's twice."""
    return f"{indent}// {schema['description']}\n" if schema.get("description") else ""


def _default(field: Mapping[str, Any]) -> str:
    """A default value as JSON; one out of an enumeration is written as it is."""
    value = field["default"]
    return (
        value
        if isinstance(value, str) and field.get("enum")
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )

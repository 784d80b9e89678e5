"""Harmony, the format of OpenAI's gpt-oss models: every message names its channel.

    <|start|>system<|message|>…<|end|><|start|>developer<|message|># Instructions … # Tools …<|end|>
    <|start|>user<|message|>…<|end|><|start|>assistant
    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    … <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{…}<|call|>
    <|start|>functions.f to=assistant<|channel|>commentary<|message|>…<|end|>

Written after OpenAI's published guide to the format, which the openai-harmony package implements. Deliberate
differences from the Hugging Face template: earlier analysis stays, and a turn keeps the <|return|> that the model
wrote, which the template turns into <|end|> once something follows. A turn holds one call, since <|call|> ends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import PINNED_DAY, ToolSchema
from agentrl.sessions.renderers.calls import canonical
from agentrl.sessions.renderers.grammars import HARMONY
from agentrl.sessions.renderers.turns import Before, TokenWriter, TurnRenderer, text_of, tool_name
from agentrl.types import Message, Tokenizer

_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06"
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_ROUTING = "\nCalls to these tools must go to the commentary channel: 'functions'."
_NAMES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


class Harmony(TurnRenderer):
    """gpt-oss's format; see `base.Renderer`.

    Args of the constructor:
        tokenizer: must know Harmony's special tokens.
        today: the date in the system message; by default the one of all formats.
        effort: how much to reason: low, medium or high.
    """

    def __init__(self, tokenizer: Tokenizer, today: str | None = None, effort: str = "medium") -> None:
        super().__init__(tokenizer, "gpt-oss", HARMONY, ("<|return|>", "<|call|>"))
        self._end = tokenizer.special("<|end|>")
        self._today = today or f"{PINNED_DAY:%Y-%m-%d}"
        self._effort = effort

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        system = f"{_IDENTITY}\nCurrent date: {self._today}\n\nReasoning: {self._effort}\n\n{_CHANNELS}"
        self._plain(writer, "system", system + (_ROUTING if tools else ""))
        given = text_of(first, self.name) if first.role in ("system", "developer") else ""
        parts = [f"# Instructions\n\n{given}"] if given else []
        if tools:
            declared = "\n\n".join(declare(tool.get("function", tool)) for tool in tools)
            parts.append(
                f"# Tools\n\n## functions\n\nnamespace functions {{\n\n{declared}\n\n}} // namespace functions"
            )
        if parts:
            self._plain(writer, "developer", "\n\n".join(parts))

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        text = text_of(message, self.name)
        self._separate(writer, before)
        if message.role in ("system", "developer"):
            if before is not None:
                self._plain(writer, "developer", f"# Instructions\n\n{text}")
        elif message.role == "user":
            self._plain(writer, "user", text)
        else:
            said = f"functions.{tool_name(message, before, 'tool')} to=assistant"
            writer.alternate("<|start|>", said, "<|channel|>", "commentary", "<|message|>", text, "<|end|>")

    def _prompt(self, writer: TokenWriter, before: Before | None) -> None:
        self._separate(writer, before)
        writer.mark("<|start|>")
        writer.text("assistant")

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        calls, content = message.tool_calls or [], text_of(message, self.name)
        if len(calls) > 1:
            raise RenderError(f"{self.name} has no place for several tool calls in an assistant message")
        if message.reasoning_content:
            self._channel(writer, "analysis", message.reasoning_content)
        if not calls:
            self._message(writer, "final", content)
            writer.mark("<|return|>")
            return
        if content:
            self._channel(writer, "commentary", content)
        call: Any = calls[0]
        writer.text(f" to=functions.{call.function.name}" if call.function.name else "")
        writer.alternate("<|channel|>", "commentary ", "<|constrain|>", "json")
        writer.alternate("<|message|>", canonical(call.function.arguments), "<|call|>")

    def _plain(self, writer: TokenWriter, role: str, text: str) -> None:
        writer.alternate("<|start|>", role, "<|message|>", text, "<|end|>")

    def _message(self, writer: TokenWriter, channel: str, text: str) -> None:
        writer.alternate("<|channel|>", channel, "<|message|>", text)

    def _channel(self, writer: TokenWriter, channel: str, text: str) -> None:
        """A message of the turn that another one follows."""
        self._message(writer, channel, text)
        writer.alternate("<|end|>", "", "<|start|>", "assistant")


def declare(function: Mapping[str, Any]) -> str:
    """One tool: its description as comments, its parameters as a TypeScript-like type (OpenAI's guide to the format).

    OpenAI's own encoder is followed to the letter, its quirks included, but for unions (`anyOf`, `oneOf`): it calls the
    first `any` and gives the second a line for each member; here both are spelt out on one line.
    """
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

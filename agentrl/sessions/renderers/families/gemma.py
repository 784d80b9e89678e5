"""Gemma 4: a model's turn continues through the results of its calls.

    <bos><|turn>system⏎<|think|>⏎…<|tool>declaration:…<tool|><turn|>⏎<|turn>user⏎…<turn|>⏎<|turn>model⏎
    <|channel>thought⏎…⏎<channel|><|tool_call>call:f{…}<tool_call|><|tool_response>response:f{value:…}<tool_response|>
    content<turn|>⏎

The model requests a result by writing <|tool_response>, which ends what it generates; the runtime continues from
there. So the first result opens without that token, where the model wrote it, and the next assistant message needs no
prompt.
Layout and wording are those of the chat template that Google published on 9 July 2026, with thinking enabled, except
that after a result the template's prompt opens the reasoning, while here the model does so itself, as it does after a
question: what a turn looks like must not depend on what comes before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.families.gemma_notation import QUOTE, Pieces, in_order, quote, write_value
from agentrl.sessions.renderers.grammars import GEMMA
from agentrl.sessions.renderers.turns import Before, TokenWriter, TurnRenderer, text_of, tool_name
from agentrl.types import Message, Tokenizer, ToolCall, parse_arguments

END, RESULT = "<turn|>", "<|tool_response>"


class Gemma4(TurnRenderer):
    """Gemma 4's format; see `base.Renderer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, "gemma-4", GEMMA, (END, RESULT, "<eos>"))
        self._result = tokenizer.special(RESULT)
        tokenizer.special("<|turn>")

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        writer.mark("<bos>")
        writer.alternate("<|turn>", "system\n", "<|think|>", "\n")
        if first.role in ("system", "developer"):
            writer.text(text_of(first, self.name).strip())
        for tool in tools:
            writer.mark("<|tool>")
            _put(writer, declaration(tool.get("function", tool)))
            writer.mark("<tool|>")
        self._close(writer)

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        text = text_of(message, self.name)
        if message.role == "tool":
            if self._find_end(before) != self._result:
                writer.mark(RESULT)
            writer.text(f"response:{tool_name(message, before, 'unknown')}{{value:")
            _put(writer, quote(text))
            writer.text("}")
            writer.mark("<tool_response|>")
        elif before is not None or message.role == "user":  # else `_open` has written it
            self._separate(writer, before)
            writer.mark("<|turn>")
            writer.text(f"{'user' if message.role == 'user' else 'system'}\n{text.strip()}")
            self._close(writer)

    def _prompt(self, writer: TokenWriter, before: Before | None) -> None:
        if before is None or before.role != "tool":
            self._separate(writer, before)
            writer.mark("<|turn>")
            writer.text("model\n")

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        text, calls = text_of(message, self.name).strip(), message.tool_calls or ()
        if text and calls:
            raise RenderError(f"{self.name} has no place for content beside a tool call in an assistant message")
        if message.reasoning_content:
            writer.alternate("<|channel>", f"thought\n{message.reasoning_content}\n", "<channel|>")
        for call in calls:
            writer.mark("<|tool_call>")
            _put(writer, _write_call(call))
            writer.mark("<tool_call|>")
        writer.text(text)
        writer.token(self._result if calls else self._end)

    def _separate(self, writer: TokenWriter, before: Before | None) -> None:
        """End the model's turn, unless a call that got no result has done so."""
        if before is None or before.role not in ("assistant", "tool"):
            return
        ended = self._find_end(before)
        if ended is None and before.message.tool_calls:
            writer.mark(RESULT)
        elif ended is None:
            self._close(writer)
        elif ended != self._result:
            writer.text("\n")

    def _find_end(self, before: Before | None) -> int | None:
        """The token that ended an assistant's turn; None where none has, or where there is no turn before."""
        if before is None or before.role != "assistant" or not before.ended:
            return None
        written = self._result if before.message.tool_calls else self._end
        return written if before.last is None else before.last

    def _close(self, writer: TokenWriter) -> None:
        writer.mark(END)
        writer.text("\n")


def declaration(function: Mapping[str, Any]) -> Pieces:
    """A tool, as the system turn describes it."""
    yield f"declaration:{function['name']}{{description:"
    yield from quote(function.get("description") or "")
    if schema := function.get("parameters"):
        yield ",parameters:{"
        if schema.get("properties"):
            yield "properties:{"
            yield from _properties(schema["properties"])
            yield "},"
        if schema.get("required"):
            yield from _names("required", schema["required"])
            yield ","
        yield "type:"
        yield from quote(_kind(schema.get("type", "object")))
        yield "}"
    yield "}"


_STANDARD = frozenset({"description", "type", "properties", "required", "nullable"})


def _properties(properties: Mapping[str, Any]) -> Pieces:
    for place, (name, schema) in enumerate(in_order(properties)):
        yield f"{',' * (place > 0)}{name}:{{"
        for part in _describe(schema if isinstance(schema, Mapping) else {}):
            yield from part
            yield ","
        yield "type:"
        yield from quote(_kind(schema.get("type")) if isinstance(schema, Mapping) else "")
        yield "}"


def _describe(schema: Mapping[str, Any]) -> Iterable[Pieces]:
    """The pieces before a property's type."""
    kind = _kind(schema.get("type"))
    if schema.get("description"):
        yield _member("description", quote(schema["description"]))
    if kind == "STRING" and schema.get("enum"):
        yield _member("enum", write_value(schema["enum"], quoted_keys=True))
    if kind == "ARRAY" and isinstance(schema.get("items"), Mapping) and schema["items"]:
        yield _member("items", _items(schema["items"]))
    if schema.get("nullable"):
        yield _member("nullable", iter(("true",)))
    if kind == "OBJECT":
        inner = schema.get("properties")
        if not isinstance(inner, Mapping):
            inner = {key: value for key, value in schema.items() if key not in _STANDARD}
        yield _member("properties", _brace(_properties(inner)))
        if schema.get("required"):
            yield _names("required", schema["required"])


def _items(schema: Mapping[str, Any]) -> Pieces:
    """The description of an array's items."""
    yield "{"
    known = [(key, value) for key, value in in_order(schema) if value is not None]
    for place, (key, value) in enumerate(known):
        yield "," * (place > 0)
        if key == "properties":
            yield from _member(key, _brace(_properties(value if isinstance(value, Mapping) else {})))
        elif key == "required":
            yield from _names(key, value)
        elif key == "type":
            kinds = value.upper() if isinstance(value, str) else [one.upper() for one in value]
            yield from _member(key, write_value(kinds))
        else:
            yield from _member(key, write_value(value, quoted_keys=True))
    yield "}"


def _member(key: str, value: Pieces) -> Pieces:
    yield f"{key}:"
    yield from value


def _brace(pieces: Pieces) -> Pieces:
    yield "{"
    yield from pieces
    yield "}"


def _names(key: str, names: Sequence[str]) -> Pieces:
    yield f"{key}:["
    for place, name in enumerate(names):
        yield "," * (place > 0)
        yield from quote(name)
    yield "]"


def _kind(kind: Any) -> str:
    """A type's name in capitals; a list of them as the template spells it."""
    return "" if kind is None else str(kind).upper()


def _write_call(call: ToolCall) -> Pieces:
    """A call; a malformed one as its raw text."""
    if not call.function.name:
        yield call.function.arguments
        return
    yield f"call:{call.function.name}"
    yield from write_value(parse_arguments(call))


def _put(writer: TokenWriter, pieces: Pieces) -> None:
    for piece in pieces:
        if piece is QUOTE:
            writer.mark(piece)
        else:
            writer.text(piece)

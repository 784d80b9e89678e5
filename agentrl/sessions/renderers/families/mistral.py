r"""Mistral's instruct formats with a Tekken tokenizer: version 3 (Nemo), 7, 11 and 13.

    <s>[AVAILABLE_TOOLS][…][/AVAILABLE_TOOLS][INST]system\n\nuser[/INST]…</s>
    [TOOL_CALLS][{"name": …, "arguments": …, "id": "9 chars"}]</s>
    [TOOL_RESULTS]{"content": …, "call_id": …}[/TOOL_RESULTS]

Version 7 gives the system prompt tags of its own and results as [TOOL_RESULTS]id[TOOL_CONTENT]…; 11 writes a call as
[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}; 13 leaves the ids out, of calls and results, and may reason in [THINK]…[/THINK].

Mistral's template moves tools and system prompt to the *last* user message, so every new one rewrites the
history. Here they stay with the first, which is where the first turn was sampled; that is the intended
difference. Call ids have exactly nine letters or digits: others are replaced by a digest of themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.calls import canonical, dumps
from agentrl.sessions.renderers.grammar import special_or_none
from agentrl.sessions.renderers.grammars import MISTRAL
from agentrl.sessions.renderers.turns import Before, TokenWriter, TurnRenderer, text_of
from agentrl.types import Message, Tokenizer, ToolCall


class Mistral(TurnRenderer):
    r"""Mistral's instruct format; see `base.Renderer`."""

    def __init__(self, tokenizer: Tokenizer, name: str = "mistral") -> None:
        super().__init__(tokenizer, name, MISTRAL, ("</s>",))

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        writer.mark("<s>")
        if tools:
            declared = ", ".join(_describe(tool.get("function", tool)) for tool in tools)
            writer.alternate("[AVAILABLE_TOOLS]", f"[{declared}]", "[/AVAILABLE_TOOLS]")

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        text = text_of(message, self.name)
        self._separate(writer, before)
        if message.role in ("system", "developer"):
            if before is not None:
                raise RenderError(f"{self.name} has no place for a {message.role} message but the first")
        elif message.role == "user":
            if before is not None and before.role in ("system", "developer"):
                text = f"{text_of(before.message, self.name)}\n\n{text}"
            writer.alternate("[INST]", text, "[/INST]")
        else:
            self._result(writer, message, text)

    def _result(self, writer: TokenWriter, message: Message, text: str) -> None:
        result = f'{{"content": {text}, "call_id": "{call_id(message.tool_call_id or "")}"}}'
        writer.alternate("[TOOL_RESULTS]", result, "[/TOOL_RESULTS]")

    def _prompt(self, writer: TokenWriter, before: Before | None) -> None:
        self._separate(writer, before)

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        text = text_of(message, self.name)
        if message.reasoning_content:
            raise RenderError(f"{self.name} has no place for reasoning in an assistant message")
        if message.tool_calls and text:
            raise RenderError(f"{self.name} has no place for content beside a tool call in an assistant message")
        writer.text(text)
        self._calls(writer, message.tool_calls or ())
        writer.token(self._end)

    def _calls(self, writer: TokenWriter, calls: Sequence[ToolCall]) -> None:
        if calls:
            writer.mark("[TOOL_CALLS]")
            writer.text("[" + ", ".join(_call(call) for call in calls) + "]")


class MistralV7(Mistral):
    """Version 7 and later: the system prompt in tags of its own, reasoning in [THINK] where the tokenizer has it.

    Args of the constructor:
        tokenizer: a Tekken one with the version's special tokens.
        version: 7: calls as a JSON list; 11: each by name, id and arguments; 13: likewise, without ids.
    """

    def __init__(self, tokenizer: Tokenizer, version: int = 7) -> None:
        super().__init__(tokenizer, f"mistral-v{version}")
        self.version = version
        self._thinks = special_or_none(tokenizer, "[THINK]") is not None
        for mark in ("[SYSTEM_PROMPT]", *(("[ARGS]",) if version >= 11 else ()), *(("[CALL_ID]",) * (version == 11))):
            tokenizer.special(mark)

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        writer.mark("<s>")
        if first.role in ("system", "developer"):
            self._system(writer, text_of(first, self.name))
        if tools:
            writer.alternate("[AVAILABLE_TOOLS]", dumps([dict(tool) for tool in tools]), "[/AVAILABLE_TOOLS]")

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        text = text_of(message, self.name)
        self._separate(writer, before)
        if message.role == "user":
            writer.alternate("[INST]", text, "[/INST]")
        elif message.role == "tool":
            self._result(writer, message, text)
        elif before is not None:  # else `_open` has written it
            self._system(writer, text)

    def _system(self, writer: TokenWriter, text: str) -> None:
        writer.alternate("[SYSTEM_PROMPT]", text, "[/SYSTEM_PROMPT]")

    def _result(self, writer: TokenWriter, message: Message, text: str) -> None:
        writer.mark("[TOOL_RESULTS]")
        if self.version < 13:
            writer.text(call_id(message.tool_call_id or ""))
            writer.mark("[TOOL_CONTENT]")
        writer.text(text)
        writer.mark("[/TOOL_RESULTS]")

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        if message.reasoning_content:
            if not self._thinks:
                raise RenderError(f"{self.name} without [THINK] has no place for reasoning in an assistant message")
            writer.alternate("[THINK]", message.reasoning_content, "[/THINK]")
        writer.text(text_of(message, self.name))
        self._calls(writer, message.tool_calls or ())
        writer.token(self._end)

    def _calls(self, writer: TokenWriter, calls: Sequence[ToolCall]) -> None:
        if self.version < 11:
            super()._calls(writer, calls)
            return
        for call in calls:
            writer.mark("[TOOL_CALLS]")
            writer.text(call.function.name)
            if call.function.name and self.version < 13:
                writer.mark("[CALL_ID]")
                writer.text(call_id(call.id))
            if call.function.name:
                writer.mark("[ARGS]")
            writer.text(canonical(call.function.arguments))


def call_id(given: str) -> str:
    """A call id as Mistral requires it: nine letters or digits."""
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:9]


def _call(call: Any) -> str:
    if not call.function.name:
        return str(call.function.arguments)
    name, arguments = dumps(call.function.name), canonical(call.function.arguments)
    return f'{{"name": {name}, "arguments": {arguments}, "id": "{call_id(call.id)}"}}'


def _describe(function: Mapping[str, Any]) -> str:
    """A tool as Mistral's template spells it: texts between quotes as they are, the rest as JSON."""
    members = [
        f'"{key}": "{value}"' if isinstance(value, str) else f'"{key}": {json.dumps(value, ensure_ascii=False)}'
        for key, value in function.items()
        if key != "return"
    ]
    return '{"type": "function", "function": {' + ", ".join(members) + "}}"

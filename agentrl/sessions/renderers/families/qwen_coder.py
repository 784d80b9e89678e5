"""Qwen 3 Coder: ChatML whose tools are described and called in XML without quotes.

The wording and layout are those of the chat template that Qwen published with the Qwen3-Coder models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.calls import dumps
from agentrl.sessions.renderers.families.chatml import ChatML
from agentrl.sessions.renderers.grammars import QWEN_CODER
from agentrl.sessions.renderers.turns import Before, TokenWriter, text_of
from agentrl.types import Message, Tokenizer, ToolCall, parse_arguments

_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
_HEAD = "\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n",
    "\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n",
    "\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner <function=...></function> "
    "block must be nested within ",
    " XML tags\n- Required parameters MUST be specified\n- You may provide optional reasoning for your function call "
    "in natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer "
    "the question like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>",
)


class QwenCoder(ChatML):
    """ChatML with Qwen 3 Coder's tools; see `base.Renderer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, "qwen3-coder", grammar=QWEN_CODER)

    def _system(self, given: str | None, tools: Sequence[ToolSchema]) -> str:
        return given if given is not None else (_SYSTEM if tools else "")

    def _tools(self, writer: TokenWriter, tools: Sequence[ToolSchema], *, opened: bool) -> None:
        writer.text(_HEAD)
        for tool in tools:
            writer.text(_describe(tool.get("function", tool)))
        writer.text(_TAIL[0])
        writer.alternate("<tool_call>", _TAIL[1], "</tool_call>", _TAIL[2], "<tool_call>", "", "</tool_call>", _TAIL[3])

    def _tool_result(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        if before is None or before.role != "tool":
            self._separate(writer, before)
            self._header(writer, "user")
        writer.alternate("<tool_response>", f"\n{text_of(message, self.name)}\n", "</tool_response>", "\n")

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        if message.reasoning_content:
            raise RenderError(f"{self.name} has no place for reasoning in an assistant message")
        content, calls = text_of(message, self.name), message.tool_calls or ()
        writer.text(content.strip() if calls else content)
        for place, call in enumerate(calls):
            writer.text("\n" if place else "\n\n" if content.strip() else "")
            writer.alternate("<tool_call>", _call(call), "</tool_call>")
        writer.token(self._end)


def _call(call: ToolCall) -> str:
    if not call.function.name:
        return call.function.arguments
    pairs = "".join(
        f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in parse_arguments(call).items()
    )
    return f"\n<function={call.function.name}>\n{pairs}</function>\n"


def _value(value: Any) -> str:
    """Containers as JSON, everything else as Python's str, as the template has it."""
    return dumps(value) if isinstance(value, dict | list) else str(value)


def _describe(function: Mapping[str, Any]) -> str:
    lines = [f"\n<function>\n<name>{function['name']}</name>"]
    if "description" in function:
        lines.append(f"\n<description>{str(function['description']).strip()}</description>")
    parameters = function.get("parameters") or {}
    lines.append("\n<parameters>")
    for name, fields in (parameters.get("properties") or {}).items():
        lines.append(f"\n<parameter>\n<name>{name}</name>")
        if "type" in fields:
            lines.append(f"\n<type>{fields['type']}</type>")
        if "description" in fields:
            lines.append(f"\n<description>{str(fields['description']).strip()}</description>")
        lines.append(_others(fields, {"name", "type", "description"}) + "\n</parameter>")
    lines.append(_others(parameters, {"type", "properties"}) + "\n</parameters>")
    return "".join(lines) + _others(function, {"type", "name", "description", "parameters"}) + "\n</function>"


def _others(fields: Mapping[str, Any], handled: set[str]) -> str:
    return "".join(f"\n<{key}>{_value(value)}</{key}>" for key, value in fields.items() if key not in handled)

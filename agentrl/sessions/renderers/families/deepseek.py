# ruff: noqa: RUF001 (DeepSeek's delimiters are spelt with a full-width bar)
"""DeepSeek V3.1: V3's tokens, a thinking switch in the prompt, and tool calls without a fence.

    ⟨begin⟩system⟨User⟩…⟨Assistant⟩</think>content⟨calls begin⟩⟨call begin⟩name⟨sep⟩arguments⟨call end⟩⟨calls end⟩⟨end⟩
    ⟨output begin⟩result⟨output end⟩content⟨end⟩

After a tool result the model continues without a new ⟨Assistant⟩. With thinking the prompt ends in <think>, without
it in </think>. The published template drops the reasoning of earlier turns; here it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.calls import canonical, dumps
from agentrl.sessions.renderers.grammars import DEEPSEEK_V31
from agentrl.sessions.renderers.turns import Before, TokenWriter, TurnRenderer, text_of
from agentrl.types import Message, Node, Tokenizer

_HEAD = "\n\n## Tools\nYou have access to the following tools:\n"
_FORMAT = "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
_RULES = (
    "\n\nWhere:\n\n- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n"
)


def _mark(name: str) -> str:
    return f"<｜{name.replace(' ', '▁')}｜>"


class DeepSeekV31(TurnRenderer):
    """DeepSeek V3.1's format; see `base.Renderer`.

    Args of the constructor:
        tokenizer: must know DeepSeek's special tokens, <think> and </think>.
        thinking: whether turns begin with reasoning; the models call tools only without.
    """

    def __init__(self, tokenizer: Tokenizer, thinking: bool = False) -> None:
        grammar = replace(DEEPSEEK_V31, start="reasoning") if thinking else DEEPSEEK_V31
        name = "deepseek-v3.1-thinking" if thinking else "deepseek-v3.1"
        super().__init__(tokenizer, name, grammar, (_mark("end of sentence"),))
        self.thinking = thinking

    def past(self, message: Message, before: Node | None) -> list[int]:
        """An earlier turn without its reasoning: no thinking block; see `strip.RendersPastTurns`."""
        plain = DeepSeekV31(self.tokenizer) if self.thinking else self
        return [*plain.generation_prompt(before), *plain.turn(message)]

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        writer.mark(_mark("begin of sentence"))
        if first.role in ("system", "developer"):
            writer.text(text_of(first, self.name))
        if tools:
            self._tools(writer, tools)

    def _tools(self, writer: TokenWriter, tools: Sequence[ToolSchema]) -> None:
        writer.text(_HEAD)
        for tool in tools:
            function = tool.get("function", tool)
            writer.text(f"\n### {function['name']}\nDescription: {function.get('description', '')}\n")
            writer.text(f"\nParameters: {dumps(function.get('parameters', {}))}\n")
        writer.text(_FORMAT)
        for part in ("tool calls begin", "tool call begin", "=tool_call_name", "tool sep", "=tool_call_arguments",
                     "tool call end", "={additional_tool_calls}", "tool calls end"):  # fmt: skip
            if part.startswith("="):
                writer.text(part[1:])
            else:
                writer.mark(_mark(part))
        writer.text(_RULES)

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        text = text_of(message, self.name)
        self._separate(writer, before)
        if message.role in ("system", "developer"):
            if before is not None:
                raise RenderError(f"{self.name} has no place for a {message.role} message but the first")
        elif message.role == "user":
            writer.mark(_mark("User"))
            writer.text(text)
        elif self.thinking:
            raise RenderError(f"{self.name} has no place for a tool message")
        else:
            writer.alternate(_mark("tool output begin"), text, _mark("tool output end"))

    def _prompt(self, writer: TokenWriter, before: Before | None) -> None:
        self._separate(writer, before)
        if before is None or before.role != "tool":
            writer.mark(_mark("Assistant"))
            writer.mark("<think>" if self.thinking else "</think>")

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        if message.reasoning_content and not self.thinking:
            raise RenderError(f"{self.name} without thinking has no place for reasoning in an assistant message")
        if message.tool_calls and self.thinking:
            raise RenderError(f"{self.name} has no place for tool calls in an assistant message")
        if self.thinking:
            writer.text(message.reasoning_content or "")
            writer.mark("</think>")
        writer.text(text_of(message, self.name))
        if message.tool_calls:
            writer.mark(_mark("tool calls begin"))
            for call in message.tool_calls:
                writer.mark(_mark("tool call begin"))
                writer.text(call.function.name)
                if call.function.name:
                    writer.mark(_mark("tool sep"))
                writer.text(canonical(call.function.arguments))
                writer.mark(_mark("tool call end"))
            writer.mark(_mark("tool calls end"))
        writer.token(self._end)

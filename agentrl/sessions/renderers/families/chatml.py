"""ChatML with Hermes tools: SmolLM2, Qwen 2.5, our own tiny model, and other models that use it.

    <|im_start|>system … # Tools … <tools>…</tools> …<|im_end|>
    <|im_start|>user …<|im_end|>
    <|im_start|>assistant <think>…</think> … <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
    <|im_start|>user <tool_response>…</tool_response> …<|im_end|>

The tools' wording is the one that Qwen published with its 2.5 models, after Nous Research's Hermes function
calling. Consecutive tool results share one user turn, so a tool result leaves its turn open and whatever comes
next closes it. An assistant turn ends at its <|im_end|>; the newline that the format puts behind it opens the
next node.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.calls import dumps, hermes_body
from agentrl.sessions.renderers.grammar import Grammar
from agentrl.sessions.renderers.grammars import HERMES
from agentrl.sessions.renderers.turns import Before, TokenWriter, TurnRenderer, text_of
from agentrl.types import Message, Tokenizer

START, END = "<|im_start|>", "<|im_end|>"

QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
SMOLLM_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within ",
    " XML tags:\n",
    '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
)


class ChatML(TurnRenderer):
    """A ChatML renderer; see `base.Renderer`.

    Args of the constructor:
        tokenizer: must know <|im_start|> and <|im_end|>.
        name: the renderer's name.
        default_system: the system prompt of a conversation without one; "" writes no system turn.
        grammar: reads the turns.
    """

    def __init__(
        self, tokenizer: Tokenizer, name: str = "chatml", default_system: str = "", grammar: Grammar = HERMES
    ) -> None:
        super().__init__(tokenizer, name, grammar, (END,))
        self.default_system = default_system
        tokenizer.special(START)

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        """The system turn that begins a path; the first message's node opens with it."""
        given = first.role in ("system", "developer")
        system = self._system(text_of(first, self.name) if given else None, tools)
        if not given and not tools and not system:
            return
        self._header(writer, "system")
        writer.text(system)
        if tools:
            self._tools(writer, tools, opened=given or bool(system))
        writer.token(self._end)
        writer.text("\n")

    def _system(self, given: str | None, tools: Sequence[ToolSchema]) -> str:
        return self.default_system if given is None else given

    def _tools(self, writer: TokenWriter, tools: Sequence[ToolSchema], *, opened: bool) -> None:
        """The tools, as the end of the system turn; `opened`: something comes before them."""
        writer.text(("\n\n" if opened else "") + _TOOLS_HEAD)
        for tool in tools:
            writer.text("\n" + dumps(tool))
        writer.text(_TOOLS_TAIL[0])
        writer.alternate(
            "<tool_call>", "", "</tool_call>", _TOOLS_TAIL[1], "<tool_call>", _TOOLS_TAIL[2], "</tool_call>"
        )

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        if message.role == "tool":
            self._tool_result(writer, message, before, following)
        elif before is not None or message.role == "user":  # else `_open` has written it
            self._separate(writer, before)
            self._header(writer, "user" if message.role == "user" else "system")
            writer.content(message, self.name)
            writer.token(self._end)
            writer.text("\n")

    def _tool_result(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        if before is None or before.role != "tool":
            self._separate(writer, before)
            self._header(writer, "user")
        elif not before.together:
            writer.text("\n")
        writer.mark("<tool_response>")
        writer.text("\n")
        writer.content(message, self.name)
        writer.text("\n")
        writer.mark("</tool_response>")
        if following == "tool":
            writer.text("\n")

    def _prompt(self, writer: TokenWriter, before: Before | None) -> None:
        self._separate(writer, before)
        self._header(writer, "assistant")

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        content = text_of(message, self.name)
        if message.reasoning_content:
            writer.alternate("<think>", f"\n{message.reasoning_content}\n", "</think>", "\n\n")
        writer.text(content)
        for place, call in enumerate(message.tool_calls or ()):
            if place or content:
                writer.text("\n")
            writer.alternate("<tool_call>", f"\n{hermes_body(call)}\n", "</tool_call>")
        writer.token(self._end)

    def _header(self, writer: TokenWriter, role: str) -> None:
        writer.mark(START)
        writer.text(f"{role}\n")

    def _separate(self, writer: TokenWriter, before: Before | None) -> None:
        """Close what comes before: an open turn gets its end, an assistant's its newline."""
        if before is None:
            return
        if before.role == "tool" or not before.ended:
            writer.token(self._end)
        if before.role in ("tool", "assistant"):
            writer.text("\n")

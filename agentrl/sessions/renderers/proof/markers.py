"""Does what goes into a conversation format come out again, of the prompt's tokens and of the parser?

A template that only appends can still leave out the user's text, or write a turn that no grammar of ours reads as it
was meant: thoughts in the answer, a channel's name before it, a stop token within it. So every part of a conversation
is a text of its own, and is looked for. The generic renderer is refused by what is lost, `agentrl check renderer=` and
the table in docs/renderers.md show all of it, for any renderer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl.errors import AgentRLError, RenderError
from agentrl.sessions.renderers.base import Renderer, ToolSchema, parse
from agentrl.sessions.renderers.proof.reading import same_calls
from agentrl.sessions.renderers.proof.trials import nodes
from agentrl.types import FunctionCall, Message, Node, ToolCall

_SYSTEM, _USER, _RESULT, _TOOL, _PARAMETER = "coral beryl", "ruby topaz", "amber onyx", "opal_jade", "agate_depth"
_ANSWERS, _THOUGHT = ("42", "Pearl, then."), "I count."
_TOOLS: tuple[ToolSchema, ...] = (
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Find stones.",
            "parameters": {
                "type": "object",
                "properties": {_PARAMETER: {"type": "string", "description": "how deep"}},
                "required": [_PARAMETER],
            },
        },
    },
)
_ASKS = Message(role="user", content=_USER)


class MarkerPart(StrEnum):
    """A part of a conversation that is looked for."""

    SYSTEM = "system"
    USER = "user"
    TOOLS = "tool list"
    CALL = "call"
    RESULT = "result"
    REASONING = "reasoning"
    ANSWER = "answer"
    STOP = "one stop token, at the end"


@dataclass(frozen=True, slots=True)
class MarkerCheck:
    """The result of looking for a part.

    Attributes:
        part: the part.
        placed: whether the format has a place for it.
        lost: how it does not come out again, as a clause; "" where it does, or there is no place.
    """

    part: MarkerPart
    placed: bool
    lost: str = ""


def read_back(renderer: Renderer) -> list[MarkerCheck]:
    """Look for every part of a conversation in a renderer's tokens, or in what its parser makes of them."""
    return [look_for(part, renderer) for part in MarkerPart]


def look_for(part: MarkerPart, renderer: Renderer) -> MarkerCheck:
    """Look for one part, as `read_back` does."""
    try:
        return MarkerCheck(part, True, _TRIALS[part](renderer))
    except RenderError:
        return MarkerCheck(part, False)
    except AgentRLError as error:
        return MarkerCheck(part, True, str(error))


WARNED: Mapping[MarkerPart, str] = {
    MarkerPart.SYSTEM: "the chat template drops system messages: the model won't see them; put their text in a user "
    "message",
    MarkerPart.TOOLS: "the chat template does not list the tools on offer: the model won't see them; describe them in "
    "the system message",
}
"""Parts without which a format is served, with a warning."""


REFUSES_TOOLS = "refuses_tools"
"""A renderer's attribute: why tools on offer are refused, where nobody named the format."""
UNLISTED = (
    "the chat template does not list the tools on offer, so the model would not know them: describe them in the system "
    "message, and say so by naming the format, model.renderer={name}; or take a model whose template lists them"
)


def find_lost(renderer: Renderer) -> str:
    """Return what of a conversation does not come out again, so that the format can't be used; "" where all does.

    What is only warned of is not among it, nor are calls: tools alone are refused where they aren't read.
    """
    trials = (look_for(part, renderer) for part in MarkerPart if part not in WARNED and part is not MarkerPart.CALL)
    return next((found.lost for found in trials if found.lost), "")


# ------------------------------------------------------------------------------------------------ prompts


def _prompt(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> str:
    """The text of a conversation's tokens, rendered as a session grows, with the prompt of the next turn."""
    path: list[int] = []
    after: Node | None = None
    for _, after in nodes(renderer, messages, tools):
        path += after.token_ids
    return renderer.tokenizer.decode(path + renderer.generation_prompt(after))


def _system(renderer: Renderer) -> str:
    shown = _prompt(renderer, [Message(role="system", content=_SYSTEM), _ASKS])
    return "" if _SYSTEM in shown else "a system message's text is not in the prompt"


def _user(renderer: Renderer) -> str:
    try:
        shown = _prompt(renderer, [_ASKS])
    except RenderError as error:
        return f"a user's message can't be written: {error}"
    return "" if _USER in shown else "the user's text is not in the prompt"


def _tools(renderer: Renderer) -> str:
    shown = _prompt(renderer, [_ASKS], _TOOLS)
    missing = [name for name in (_TOOL, _PARAMETER) if name not in shown]
    return f"of a tool on offer, {' and '.join(missing)} is not in the prompt" if missing else ""


def _result(renderer: Renderer) -> str:
    result = Message(role="tool", content=_RESULT, tool_call_id=_call(renderer).id, name=_TOOL)
    shown = _prompt(renderer, [_ASKS, _calling(renderer), result], _TOOLS)
    return "" if _RESULT in shown else "a tool's result is not in the prompt"


# -------------------------------------------------------------------------------------------------- turns


def _call(renderer: Renderer) -> ToolCall:
    named = f"functions.{_TOOL}:0" if renderer.name.startswith("kimi") else "call00000"
    return ToolCall(id=named, function=FunctionCall(name=_TOOL, arguments=json.dumps({_PARAMETER: "tea"})))


def _calling(renderer: Renderer) -> Message:
    return Message(role="assistant", content="", tool_calls=[_call(renderer)])


def _answers(renderer: Renderer) -> Iterator[Message]:
    """Answers with and without reasoning, as far as the format has a place for it."""
    thinking = Message(role="assistant", content=_ANSWERS[0], reasoning_content=_THOUGHT)
    placed = _writes(renderer, thinking)
    bare = not (placed and getattr(renderer, "thinks_in_prompt", False))
    for text in _ANSWERS:
        for thought in ([None] if bare else []) + ([_THOUGHT] if placed else []):
            yield Message(role="assistant", content=text, reasoning_content=thought)


def _writes(renderer: Renderer, message: Message) -> bool:
    try:
        renderer.turn(message)
    except RenderError:
        return False
    return True


def _read_call(renderer: Renderer) -> str:
    written = _calling(renderer)
    read = parse(renderer, renderer.turn(written), _TOOLS).message
    return "" if same_calls(read, written) else f"a call is read as {read.text or read.tool_calls!r}"


def _reasoning(renderer: Renderer) -> str:
    """Reasoning that is read where none was written counts as well, whether or not the format has a place for it."""
    placed = False
    for written in _answers(renderer):
        read = parse(renderer, renderer.turn(written)).message.reasoning_content
        if (read or "").strip() != (written.reasoning_content or ""):
            return f"the reasoning {written.reasoning_content!r} is read as {read!r}"
        placed = placed or bool(written.reasoning_content)
    if not placed:
        raise RenderError("no place for reasoning")
    return ""


def _answer(renderer: Renderer) -> str:
    for written in _answers(renderer):
        try:
            read = parse(renderer, renderer.turn(written)).message
        except RenderError as error:
            return f"an answer can't be written: {error}"
        if read.text.strip() != written.text:
            return f"the answer {written.text!r} is read as {read.text!r}"
    return ""


def _stop(renderer: Renderer) -> str:
    for written in (*_answers(renderer), _calling(renderer)):
        try:
            ids = renderer.turn(written)
        except RenderError:
            continue
        if [place for place, index in enumerate(ids) if index in renderer.stop_token_ids] != [len(ids) - 1]:
            return f"a turn does not end with the only stop token in it: {renderer.tokenizer.decode(ids)!r}"
    return ""


_TRIALS: Mapping[MarkerPart, Callable[[Renderer], str]] = {
    MarkerPart.SYSTEM: _system,
    MarkerPart.USER: _user,
    MarkerPart.TOOLS: _tools,
    MarkerPart.CALL: _read_call,
    MarkerPart.RESULT: _result,
    MarkerPart.REASONING: _reasoning,
    MarkerPart.ANSWER: _answer,
    MarkerPart.STOP: _stop,
}

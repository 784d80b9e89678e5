"""Does what goes into a chat template come out again, of the prompt's tokens and of the parser?

A template that only appends can still leave out the user's text, or write a turn that no grammar of ours reads as it
was meant: thoughts in the answer, a channel's name before it, a stop token within it. So every part of a conversation
is a text of its own, and is looked for.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.families import Expresses
from agentrl.sessions.renderers.probe import ProbeRenderer
from agentrl.types import FunctionCall, Message, ToolCall

_USER, _RESULT, _TOOL = "ruby topaz", "amber onyx", "opal_jade"
_ANSWERS, _THOUGHT = ("42", "Pearl, then."), "I count."
_TOOLS: tuple[ToolSchema, ...] = (
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Find stones.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    },
)
_CALL = ToolCall(id="call00000", function=FunctionCall(name=_TOOL, arguments=json.dumps({"query": "tea"})))


def lost(renderer: ProbeRenderer, able: Expresses) -> str:
    """What of a conversation does not come out again, as a clause; "" where all does.

    System messages are not among it: a template without a place for them is served with a warning.

    Args:
        renderer: a chat template with a grammar.
        able: what they can express.
    """
    return next(itertools.chain(_lost_of_prompts(renderer, able), _lost_of_turns(renderer, able)), "")


def _lost_of_prompts(renderer: ProbeRenderer, able: Expresses) -> Iterator[str]:
    user = Message(role="user", content=_USER)
    if not _shows(renderer, [user], (), _USER):
        yield "the user's text is not in the prompt"
    if not able.tools:
        return
    calling = Message(role="assistant", content="", tool_calls=[_CALL])
    result = Message(role="tool", content=_RESULT, tool_call_id=_CALL.id, name=_TOOL)
    if not _shows(renderer, [user, calling, result], _TOOLS, _RESULT):
        yield "a tool's result is not in the prompt"
    if not _shows(renderer, [user, calling, result], _TOOLS, _TOOL):
        yield "a tool's name is not in the prompt"


def _shows(renderer: ProbeRenderer, messages: Sequence[Message], tools: Sequence[ToolSchema], text: str) -> bool:
    """Whether a prompt has a text, or is refused, which shows as well."""
    try:
        return text in renderer.tokenizer.decode(renderer.whole(messages, tools, True))
    except RenderError:
        return True


def _lost_of_turns(renderer: ProbeRenderer, able: Expresses) -> Iterator[str]:
    thoughts = [None] if not able.reasoning else [_THOUGHT] if renderer.thinks_in_prompt else [None, _THOUGHT]
    turns = [Message(role="assistant", content=text, reasoning_content=one) for text in _ANSWERS for one in thoughts]
    for written in turns:
        try:
            ids = renderer.turn(written)
        except RenderError as error:
            yield f"an answer can't be written: {error}"
            continue
        parser = renderer.parser()
        parser.feed(ids)
        read = parser.finish()[1].message
        if (read.reasoning_content or "").strip() != (written.reasoning_content or ""):
            yield f"the reasoning {written.reasoning_content!r} is read as {read.reasoning_content!r}"
        if read.text.strip() != written.text:
            yield f"the answer {written.text!r} is read as {read.text!r}"
    if able.tools:
        turns.append(Message(role="assistant", content="", tool_calls=[_CALL]))
    for written in turns:
        try:
            ids = renderer.turn(written)
        except RenderError:
            continue
        stops = [place for place, index in enumerate(ids) if index in renderer.stop_token_ids]
        if stops != [len(ids) - 1]:
            yield f"a turn does not end with the only stop token in it: {renderer.tokenizer.decode(ids)!r}"

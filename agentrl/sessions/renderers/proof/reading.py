"""Trials of a grammar on the tool calls that a format writes."""

from __future__ import annotations

import json
from collections.abc import Callable

from agentrl.errors import AgentRLError
from agentrl.sessions.renderers.base import Parser, Renderer
from agentrl.sessions.renderers.grammar import Grammar
from agentrl.sessions.renderers.grammars import GRAMMARS
from agentrl.sessions.renderers.parsing import Bound
from agentrl.sessions.renderers.proof.probe import ProbeRenderer
from agentrl.types import FunctionCall, Message, ToolCall

_ARGUMENTS = ({"limit": 3, "query": "tea"}, {"query": 'say "hi",\nünï [1] {2}', "where": ["a", None], "exact": True})


def fitting(renderer: ProbeRenderer) -> list[str]:
    """The names of the grammars that read back calls which the renderer writes."""
    return [name for name, grammar in GRAMMARS.items() if reads(renderer, grammar)]


def reads(renderer: ProbeRenderer, grammar: Grammar) -> bool:
    """Return whether a grammar reads back calls that the renderer writes."""
    bound = Bound(renderer.in_prompt(grammar), renderer.tokenizer, renderer.stop_token_ids)
    try:
        return misread(renderer, bound.parser) is None
    except AgentRLError:
        return False


def misread(renderer: Renderer, parser: Callable[[], Parser]) -> Message | None:
    """Return what a parser makes of calls that the renderer writes, if that is anything else; None where it reads them.

    Raises:
        RenderError: the format has no place for calls.
    """
    for arguments in _ARGUMENTS:
        written = _calling(arguments, "functions.search:0" if renderer.name.startswith("kimi") else "call00000")
        trial = parser()
        trial.feed(renderer.turn(written))
        read = trial.finish()[1].message
        if not same_calls(read, written):
            return read
    return None


def _calling(arguments: object, call_id: str) -> Message:
    function = FunctionCall(name="search", arguments=json.dumps(arguments, ensure_ascii=False))
    return Message(role="assistant", content=None, tool_calls=[ToolCall(id=call_id, function=function)])


def same_calls(one: Message, other: Message) -> bool:
    """Return whether two messages make the same calls, whatever their ids, arguments' spelling and white space."""
    if one.text.strip() != other.text.strip() or any(call.error for call in one.tool_calls or ()):
        return False
    calls = [
        [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        for message in (one, other)
    ]
    return calls[0] == calls[1]

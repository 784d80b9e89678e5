"""Parsing a turn for a client: what is sent while it is generated, and the message that is stored.

The stored message is the one that was sent, so that it is recognised when the client sends it back: without the
stop string, with ids of the gateway on the calls (formats without ids number them from 0 in each turn, and a
conversation must not repeat them), with a malformed call as text, and the name of a tool that is not allowed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile

from agentrl.errors import RenderError
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.renderers.base import Delta, Parser, Renderer, SpanKind, make_parser, parse
from agentrl.types import FinishReason, FunctionCall, Message, ToolCall

CHARACTERS = 8
"""Characters of a token, rarely more."""


class Reading:
    """Parses one choice.

    Args:
        renderer: its parser is used.
        request: the request: its tools, stop strings, and whether calls may be parallel.
        forced: tokens that were written for the model; they belong to the call, not to the turn.
        call_ids: prefix of the ids of this turn's calls.
    """

    def __init__(self, renderer: Renderer, request: TurnRequest, forced: Sequence[int], call_ids: str) -> None:
        self._parser: Parser = make_parser(renderer, request.callable, calls=request.reads_calls)
        self._ends = frozenset(renderer.stop_token_ids)
        self._stop, self._parallel, self._call_ids = request.sampling.stop, request.parallel, call_ids
        self._may_call, self._forced = request.may_call, len(forced)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._withheld = ""
        self._stopped = False
        self._calls: list[Delta] = []
        self.malformed = 0
        self.not_allowed = 0
        self.reasoning_tokens = 0
        self.read = 0
        self._deltas(self._parser.feed(forced))

    def size(self, token_ids: Sequence[int] = ()) -> int:
        """About how many characters are read at most, once these tokens are fed: those of a call wait for its end."""
        return self._parser.unread + CHARACTERS * len(token_ids)

    def use_parser(self, parser: Parser) -> None:
        """Use another parser than the renderer's."""
        self._parser = parser

    def feed(self, token_ids: Sequence[int]) -> tuple[list[Delta], bool]:
        """Add tokens; returns what to send, and whether the turn is to be cut after `read` tokens."""
        if self._parallel:
            self.read += len(token_ids)
            return self._deltas(self._parser.feed(token_ids)), False
        deltas: list[Delta] = []
        for token in token_ids:
            if self._calls and token not in self._ends:
                return deltas, True
            self.read += 1
            deltas += self._deltas(self._parser.feed([token]))
        return deltas, False

    def finish(self, reason: FinishReason) -> tuple[list[Delta], Message]:
        """The turn has ended: the last deltas, and the message as sent."""
        last, parsed = self._parser.finish()
        thoughts = [span for span in parsed.spans if span.kind is SpanKind.REASONING and span.end > self._forced]
        self.reasoning_tokens = sum(span.end - max(span.start, self._forced) for span in thoughts)
        deltas = self._deltas(last)
        if self._withheld and not self._stopped:
            deltas.append(self._content_delta(self._withheld))
        calls = [*parsed.message.tool_calls] if parsed.message.tool_calls else []
        readable = [call for call in calls if call.error is None and self._may_call(call.function.name)]
        readable = readable[: None if self._parallel else 1]
        for call in calls:
            if call.error is not None:
                self.malformed += reason is not FinishReason.LENGTH
                deltas.append(self._content_delta(call.function.arguments))
            elif reason is not FinishReason.LENGTH and not self._may_call(call.function.name):
                self.not_allowed += 1
                deltas.append(self._content_delta(call.function.name))
        kept = []
        for index, call in enumerate(readable if reason is not FinishReason.LENGTH else ()):
            call_id = f"{self._call_ids}{index}" if call.id.startswith("call_") else call.id
            kept.append(ToolCall(id=call_id, function=call.function))
            name, arguments = call.function.name, call.function.arguments
            deltas.append(Delta(call=index, name=name, id=call_id, arguments=arguments))
        content = "".join(self._content)
        message = Message(
            role="assistant",
            content=content if content or not kept else None,
            reasoning_content="".join(self._reasoning) or None,
            tool_calls=kept or None,
        )
        return deltas, message

    def _deltas(self, deltas: Sequence[Delta]) -> list[Delta]:
        passed = []
        for delta in deltas:
            if delta.call is not None:
                self._calls.append(delta)
            elif delta.reasoning:
                self._reasoning.append(delta.reasoning)
                passed.append(delta)
            elif delta.content and (text := self._before_stop(delta.content)):
                passed.append(self._content_delta(text))
        return passed

    def _content_delta(self, text: str) -> Delta:
        self._content.append(text)
        return Delta(content=text)

    def _before_stop(self, text: str) -> str:
        """The content before a stop string; what may be the beginning of one is withheld."""
        if not self._stop:
            return text
        if self._stopped:
            return ""
        text = self._withheld + text
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self._stopped, self._withheld = True, ""
            return text[: min(found)]
        longest = max(map(len, self._stop))
        keep = next(
            (n for n in range(min(len(text), longest - 1), 0, -1) if any(s.startswith(text[-n:]) for s in self._stop)),
            0,
        )
        self._withheld = text[len(text) - keep :]
        return text[: len(text) - keep]


def prefill_of(message: Message) -> str:
    """The text that a client wrote as the beginning of the turn.

    Raises:
        ApiError: it has more than text, or ends in white space, from which models go on badly.
    """
    if message.tool_calls or message.reasoning_content:
        raise refuse_parameter("messages", "a reply that begins with a call or with reasoning; only with text")
    if message.text != message.text.rstrip():
        raise ApiError(
            400, "messages: final assistant content cannot end with trailing whitespace", "invalid_value", "messages"
        )
    return message.text


def forced_tokens(renderer: Renderer, request: TurnRequest) -> list[int]:
    """Return tokens written for the model: a call's beginning, the client's beginning of a reply, or no reasoning.

    Raises:
        ApiError: the format has no such beginning.
    """
    if request.force is not None:
        return _call_begun(renderer, request)
    if request.prefill:
        return _text_begun(renderer, request.prefill)
    return [] if request.thinking is None else _thinking(renderer, request.thinking)


def _text_begun(renderer: Renderer, text: str) -> list[int]:
    """A turn that begins with this text, without its end."""
    ids = renderer.turn(Message(role="assistant", content=text))
    while ids and ids[-1] in renderer.stop_token_ids:
        ids.pop()
    read = parse(renderer, ids).message
    if read.text != text or read.reasoning_content or read.tool_calls:
        raise refuse_parameter("messages", f"the format {renderer.name} has no turn that begins with this text")
    return ids


def _thinking(renderer: Renderer, wanted: bool) -> list[int]:
    """The tokens of a turn without reasoning; none where the format has none, or where reasoning is wanted."""
    try:
        renderer.turn(Message(role="assistant", content="a", reasoning_content="b"))
    except RenderError:
        if wanted:
            raise refuse_parameter("chat_template_kwargs", f"the format {renderer.name} has no reasoning") from None
        return []
    if wanted:
        return []
    without = _list_shared([renderer.turn(Message(role="assistant", content=text)) for text in ("a", "B", "1", "(")])
    if not without:
        raise refuse_parameter("chat_template_kwargs", f"{renderer.name} has no mark for a turn without reasoning")
    return without


def _list_shared(turns: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all of these begin with."""
    return [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*turns, strict=False))]


def _call_begun(renderer: Renderer, request: TurnRequest) -> list[int]:
    """The tokens that all calls of the allowed tools begin with."""
    names = [tool["function"]["name"] for tool in request.tools]
    wanted = [name for name in names if request.force in ("", name) and request.may_call(name)]
    if not wanted:
        raise ApiError(400, f"tool_choice names {request.force!r}; the tools are {names}", param="tool_choice")
    turns = []
    for name in wanted:
        for arguments in ({}, {"a": 1}, {"b": "c"}):
            function = FunctionCall(name=name, arguments=json.dumps(arguments))
            call = ToolCall(id="call_0", function=function)
            turns.append(renderer.turn(Message(role="assistant", tool_calls=[call])))
    shared = _list_shared(turns)
    if not shared:
        raise refuse_parameter("tool_choice", f"the format {renderer.name} has no mark that begins a call")
    return shared

"""OpenAI's legacy Completions API: text (or token ids) that is continued, without a conversation format.

A prompt that begins with a stored path's whole text continues from that path's tokens, and only the rest is
tokenised; otherwise it begins a root. The messages of such nodes have the name `prompt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.matching import HistoryMatch, root_key
from agentrl.sessions.gateway.reading import Reading
from agentrl.sessions.gateway.sizes import LARGE, check_length, check_text, off_loop
from agentrl.sessions.renderers.base import Delta, Parsed, RenderedMessage, Span, SpanKind
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.turn_generator import Prompt
from agentrl.types import FinishReason, Message, Node, Tokenizer

PROMPT = "prompt"


class CompletionExchange(Exchange):
    """An exchange whose prompt is text or token ids: `request.extra["prompt"]`."""

    async def _render(self, limit: int | None = None) -> Prompt:
        prompt: str | list[int] = self.request.extra["prompt"]
        tokenizer = self.parts.renderer.tokenizer
        parent, rest = self._stored_beginning(prompt)
        if isinstance(rest, str):
            words, remaining = rest, None if limit is None else limit - len(self.state.path_ids(parent))
            if remaining is not None:
                check_length(tokenizer, len(words), remaining)
            ids = await off_loop(len(words), lambda: _encoded(tokenizer, words, remaining))
        else:
            ids = list(rest)
        if isinstance(rest, list) and any(not 0 <= i < self.parts.engine.capabilities.vocab_size for i in rest):
            raise ApiError(400, "prompt: a token id is outside the vocabulary", "invalid_value", "prompt")
        text = rest if isinstance(rest, str) else tokenizer.decode(ids)
        message = Message(role="user", content=text, name=PROMPT)
        new = [RenderedMessage(message, ids)] if ids else []
        key = parent if parent is not None else root_key((), self.request.agent)
        known = self.state.index.same_child(key, message, ids) if ids else None
        if known is not None:
            key, new = known.id, []
        if not new and not isinstance(key, int):
            raise ApiError(400, "prompt: must not be empty", "invalid_value", "prompt")
        new_root = parent is None and known is None and bool(self.state.session.nodes)
        cause = "agent" if new_root else None
        self.match = HistoryMatch(key, tuple(rendered.message for rendered in new), branch_cause=cause)
        self.known, self.forced = None, list[int]()
        return self._prompt(new, [])

    def _stored_beginning(self, prompt: str | list[int]) -> tuple[int | None, str | list[int]]:
        """The deepest stored path that the prompt begins with, and what is new after it."""
        best: int | None = None
        length = -1
        for node in self.state.session.nodes:
            if node.finish_reason is FinishReason.LENGTH or not node.sampled or not self._is_raw(node):
                continue
            if self.request.agent not in (None, node.agent):
                continue
            stored = self._path(node, isinstance(prompt, str))
            if len(stored) >= length and prompt[: len(stored)] == stored:
                best, length = node.id, len(stored)
        return best, prompt[max(length, 0) :]

    def _path(self, node: Node, as_text: bool) -> str | list[int]:
        if not as_text:
            return tree.path_ids(self.state.session, node.id)
        return "".join(above.message.text for above in tree.path(self.state.session, node.id))

    def _is_raw(self, node: Node) -> bool:
        parent = node.parent
        return parent is not None and self.state.session.nodes[parent].message.name == PROMPT

    def _reading(self, call_ids: str) -> Reading:
        reading = super()._reading(call_ids)
        reading.use_parser(_PlainParser(self.parts.renderer.tokenizer, self.parts.renderer.stop_token_ids))
        return reading

    def spans(self, choice: Any) -> list[Span]:
        """All of a completion is content."""
        return [Span(SpanKind.CONTENT, 0, len(choice.turn.token_ids))]


def _encoded(tokenizer: Tokenizer, text: str, remaining: int | None) -> list[int]:
    if remaining is not None and len(text) >= LARGE:
        check_text(tokenizer, text, remaining)
    return tokenizer.encode(text)


_CHARACTER = 8
"""Tokens within which every character is complete: none has more than four bytes."""


class _PlainParser:
    """Text without a format; stop tokens are left out."""

    unread = 0

    def __init__(self, tokenizer: Any, stops: Sequence[int]) -> None:
        self._tokenizer, self._stops = tokenizer, frozenset(stops)
        self._ids: list[int] = []  # those whose text may still change the next one's, and the next ones
        self._settled = 0  # how many of them have been sent
        self._sent: list[str] = []

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        self._ids += [i for i in token_ids if i not in self._stops]
        return self._new(whole=False)

    def finish(self) -> tuple[list[Delta], Parsed]:
        deltas = self._new(whole=True)
        return deltas, Parsed(Message(role="assistant", content="".join(self._sent)), ())

    def _new(self, *, whole: bool) -> list[Delta]:
        """Decode what is new behind the few tokens before it: decoding all of them each time takes their square."""
        text = self._tokenizer.decode(self._ids)
        waiting = len(self._ids) - self._settled
        if not whole and text.endswith("\ufffd") and waiting < _CHARACTER:
            return []  # a character may still be incomplete
        new = text[len(self._tokenizer.decode(self._ids[: self._settled])) :]
        self._ids = self._ids[-_CHARACTER:]
        self._settled = len(self._ids)
        self._sent.append(new)
        return [Delta(content=new)] if new else []

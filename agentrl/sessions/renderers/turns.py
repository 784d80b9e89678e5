"""A loop over messages, each with the one before it, for the formats that we write ourselves.

A format says how to open a path, how to write one message after the one before it, and what a turn looks
like; see `base.Renderer` for what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.grammar import Grammar, special_or_none
from agentrl.sessions.renderers.parsing import Bound, RegionParser
from agentrl.types import Message, Node, Tokenizer


class TokenWriter:
    """Builds one token list for each message.

    Text between special tokens is encoded in one run, since a byte-pair tokenizer merges across whatever pieces
    it was put together from; a cut inside such a run splits it, so callers cut where no merge can cross.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._run: list[str] = []
        self._ids: list[int] = []

    def text(self, text: str) -> None:
        """Plain text: nothing in it can become a special token."""
        self._run.append(text)

    def mark(self, markup: str) -> None:
        """A delimiter: its special token, or its characters where the tokenizer has none."""
        index = special_or_none(self._tokenizer, markup)
        if index is None:
            self._run.append(markup)
        else:
            self.token(index)

    def alternate(self, *parts: str) -> None:
        """Delimiters and plain texts in turn, a delimiter first."""
        for place, part in enumerate(parts):
            (self.text if place % 2 else self.mark)(part)

    def content(self, message: Message, format_name: str) -> None:
        """A message's text and images, in order.

        Raises:
            RenderError: it holds an image, and the model sees none, or it can't be read.
        """
        seen = getattr(self._tokenizer, "images", None)
        if seen is None or not message.images or not isinstance(message.content, list):
            self.text(text_of(message, format_name))
            return
        for part in message.content:
            if (url := part.image) is None:
                self.text(part.text or "")
            else:
                self._flush()
                self._ids += seen.encode(url)

    def token(self, index: int) -> None:
        """One token by its id."""
        self._flush()
        self._ids.append(index)

    def take(self) -> list[int]:
        """Everything since the last call."""
        self._flush()
        ids, self._ids = self._ids, []
        return ids

    def _flush(self) -> None:
        if self._run and (text := "".join(self._run)):
            self._ids += self._tokenizer.encode(text)
        self._run = []


def text_of(message: Message, format_name: str) -> str:
    """The message's text; RenderError where it holds an image, which a text-only format can't express."""
    if isinstance(message.content, list):
        for part in message.content:
            if part.type != "text":
                raise RenderError(
                    f"content of the {message.role} message holds {part.type!r}; {format_name} takes text only"
                )
    return message.text


@dataclass(frozen=True, slots=True)
class Before:
    """The message before the next one.

    `ended`: whether an assistant's turn has its end token. `together`: it is rendered in the same call. `last`: its
    last token, where it is not.
    """

    message: Message
    ended: bool = True
    together: bool = True
    last: int | None = None

    @property
    def role(self) -> str:
        """The message's role."""
        return self.message.role


def tool_name(message: Message, before: Before | None, unknown: str) -> str:
    """The tool whose result this is: by the call that it answers, or by its own name."""
    for call in (before.message.tool_calls if before is not None else None) or ():
        if call.id == message.tool_call_id and call.function.name:
            return call.function.name
    return message.name or unknown


class TurnRenderer:
    """A format written by us; see `base.Renderer`. Subclasses write the parts."""

    def __init__(self, tokenizer: Tokenizer, name: str, grammar: Grammar, stops: Sequence[str]) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.stop_token_ids: tuple[int, ...] = tuple(tokenizer.special(stop) for stop in stops)
        self._end = self.stop_token_ids[0]
        self._grammar = Bound(grammar, tokenizer, self.stop_token_ids)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[list[int]]:
        """One token list per message; see `base.Renderer.render`."""
        writer = TokenWriter(self.tokenizer)
        before = self._before(after)
        deltas = []
        for place, message in enumerate(messages):
            following = messages[place + 1].role if place + 1 < len(messages) else None
            if before is None:
                self._open(writer, message, tools)
            if message.role == "assistant":
                self._prompt(writer, before)
                self._turn(writer, message)
            else:
                self._write(writer, message, before, following)
            before = Before(message)
            deltas.append(writer.take())
        return deltas

    def generation_prompt(self, after: Node | None = None) -> list[int]:
        """The tokens that open an assistant turn after `after`."""
        writer = TokenWriter(self.tokenizer)
        self._prompt(writer, self._before(after))
        return writer.take()

    def turn(self, message: Message) -> list[int]:
        """The tokens that a model would have written for this assistant message, end of turn included."""
        if message.role != "assistant":
            raise RenderError(f"role={message.role!r} can't be an assistant turn")
        writer = TokenWriter(self.tokenizer)
        self._turn(writer, message)
        return writer.take()

    def parser(self, tools: Sequence[ToolSchema] = ()) -> RegionParser:
        """A fresh parser for one turn."""
        return self._grammar.parser(tools)

    def end_also(self, token_ids: Sequence[int]) -> None:
        self.stop_token_ids += tuple(token_ids)
        self._grammar.end_also(token_ids)

    # ------------------------------------------------------------------------- what a format defines

    def _open(self, writer: TokenWriter, first: Message, tools: Sequence[ToolSchema]) -> None:
        """Begin a path whose first message is `first`, which is written after this."""

    def _write(self, writer: TokenWriter, message: Message, before: Before | None, following: str | None) -> None:
        """Write one message that is no assistant's."""
        raise NotImplementedError

    def _prompt(self, writer: TokenWriter, before: Before | None) -> None:
        raise NotImplementedError

    def _turn(self, writer: TokenWriter, message: Message) -> None:
        """Write what a model would have written."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------- helpers

    def _before(self, after: Node | None) -> Before | None:
        if after is None:
            return None
        last = after.token_ids[-1] if after.token_ids else None
        ended = after.message.role != "assistant" or last in self.stop_token_ids
        return Before(after.message, ended, together=False, last=last)

    def _separate(self, writer: TokenWriter, before: Before | None) -> None:
        """Give an assistant turn its end token where the model left it out."""
        if before is not None and not before.ended:
            writer.token(self._end)

"""Collects tokens: text in long runs, markup as special tokens where the tokenizer has them."""

from __future__ import annotations

from agentrl.errors import RenderError
from agentrl.sessions.renderers.grammar import special_or_none
from agentrl.types import Message, Tokenizer


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

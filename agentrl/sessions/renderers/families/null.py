"""A renderer without tokens, for episodes without a model.

An expert or a no-op policy is evaluated through the same episodes as a model, with the same limits, retries and error
handling. Its sessions hold messages and no tokens, so nothing can be trained on them by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import RenderError
from agentrl.sessions.renderers.base import Parser, ToolSchema
from agentrl.types import Message, Node, Tokenizer


class _NoTokenizer:
    vocab_size = 0

    def encode(self, text: str) -> list[int]:
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def special(self, token: str) -> int:
        raise RenderError("the null renderer has no special tokens")


class NullRenderer:
    """Renders every message as no tokens at all; it has no parser, since there is no engine."""

    name = "null"
    stop_token_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.tokenizer: Tokenizer = _NoTokenizer()

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[list[int]]:
        """No tokens for each message."""
        return [[] for _ in messages]

    def generation_prompt(self, after: Node | None = None) -> list[int]:
        return []

    def turn(self, message: Message) -> list[int]:
        return []

    def parser(self, tools: Sequence[ToolSchema] = ()) -> Parser:
        """There are no tokens to parse.

        Raises:
            RenderError: always.
        """
        raise RenderError("the null renderer can't parse tokens")

"""The interface between messages and tokens: a renderer writes what is new, a parser reads what the model wrote.

A path of a session's tree is a concatenation of *deltas*, so a renderer never sees the whole conversation
again: it is given the node before (`after`) and writes only the new messages' tokens. Implementations keep these
rules, which the conformance suite checks:

- Nothing is appended to a turn that the model wrote. What must stand between it and the next message (the
  end-of-turn token where the model left it out, a newline) opens the next node, untrained.
- Content is escaped: text that looks like a special token stays text.
- `parse(turn(message)) == message` for every message that the format can express.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from agentrl.errors import RenderError
from agentrl.types import Message, Node, Tokenizer

PINNED_DAY = datetime(2024, 7, 26)
"""Today in every prompt, so that it is the same tomorrow and in every process: the fallback of Llama 3's template."""
UNWRITTEN_NAMES = "unwritten_names"
"""The counter of an environment's messages whose name the model does not see: its format writes none."""
ToolSchema = Mapping[str, Any]
"""A tool in OpenAI's shape: {"type": "function", "function": {"name", "description", "parameters"}}."""


class SpanKind(StrEnum):
    """The kind of a run of a turn's tokens."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    MALFORMED = "malformed"  # began as a tool call, can't be read as one
    MARKUP = "markup"  # delimiters and the end-of-turn token


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of a turn, and what they are. Spans are in order, disjoint, and cover the turn."""

    kind: SpanKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """A turn read: its message (malformed calls are in `message.tool_calls` with their `error`) and its spans."""

    message: Message
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a turn as it streams.

    `call` is the index of the tool call that this piece belongs to; its first delta carries `name` and `id`.
    """

    content: str = ""
    reasoning: str = ""
    call: int | None = None
    name: str = ""
    id: str = ""
    arguments: str = ""


@dataclass(slots=True)
class RenderedMessage:
    """A message and its tokens, not in a session's tree yet; the rest as in a node."""

    message: Message
    token_ids: list[int]
    copy_of: int | None = None
    copied_tokens: int | None = None
    attachments: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, renderer: Renderer, message: Message, token_ids: list[int]) -> RenderedMessage:
        """A message that a renderer has written, with what its node carries of its images.

        Raises:
            RenderError: an image can't be read.
        """
        seen = getattr(renderer.tokenizer, "images", None) if message.images and token_ids else None
        return cls(message, token_ids, attachments={} if seen is None else seen.attached(message))

    @property
    def new_tokens(self) -> int:
        """The number of tokens that are not copied from another node."""
        return len(self.token_ids) - (self.copied_tokens or 0)

    def as_node(self) -> Node:
        """A node outside any tree, for the renderer to continue from."""
        count = len(self.token_ids)
        node = Node(-1, None, self.message, self.token_ids, [False] * count, [0.0] * count)
        node.copy_of, node.copied_tokens = self.copy_of, self.copied_tokens
        return node


class Parser(Protocol):
    """Reads one turn. Feeding it all at once or token by token gives the same result; it never raises."""

    @property
    def unread(self) -> int:
        """The number of characters that wait for the end of what they are in, which costs time for each."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more of the turn's tokens; return what they make known."""

    def finish(self) -> tuple[list[Delta], Parsed]:
        """The turn has ended: what was still held back, and the whole."""


@runtime_checkable
class Renderer(Protocol):
    """One conversation format, bound to one tokenizer."""

    name: str
    tokenizer: Tokenizer
    stop_token_ids: tuple[int, ...]
    """Tokens that end an assistant turn."""

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[list[int]]:
        """One token list per message.

        Args:
            messages: what is new, in order. An assistant message among them (a demonstration, an injected or
                edited one) is `generation_prompt` + `turn`.
            tools: the tools on offer; they count where a path begins (`after` is None).
            after: the node that the first message follows; None begins a path.

        Raises:
            RenderError: the format has no place for one of them (images, an unknown role …).
        """

    def generation_prompt(self, after: Node | None = None) -> list[int]:
        """The tokens that open an assistant turn after `after`."""

    def turn(self, message: Message) -> list[int]:
        """The tokens that a model would have written for this assistant message, end of turn included."""

    def parser(self, tools: Sequence[ToolSchema] = ()) -> Parser:
        """A fresh parser for one turn.

        Args:
            tools: the tools on offer. Formats that write arguments without quotes (Qwen 3 Coder's and GLM's XML)
                need their schemas to distinguish "5" from 5; the others ignore them.
        """


def drops_name(renderer: Renderer, message: Message) -> bool:
    """Return whether a message has a `name` that the format writes nowhere; a tool's is known by its call as well."""
    if message.name is None or message.role == "tool":
        return False
    named = Message(role=message.role, content="a", name=message.name)
    before = [Message(role="user", content="a")] if message.role == "assistant" else []
    try:
        written, plain = (renderer.render([*before, each]) for each in (named, named.model_copy(update={"name": None})))
    except RenderError:  # a format that has no place for the role alone says nothing of names
        return False
    return written == plain


def make_parser(renderer: Renderer, tools: Sequence[ToolSchema] = (), *, calls: bool = True) -> Parser:
    """A fresh parser for one turn.

    Args:
        renderer: the format.
        tools: the tools on offer.
        calls: whether calls are read; else they stay text, where the format's parser has `without_calls`.
    """
    parser = renderer.parser(tools)
    plain = None if calls else getattr(parser, "without_calls", None)
    return parser if plain is None else plain()


def parse(
    renderer: Renderer, token_ids: Sequence[int], tools: Sequence[ToolSchema] = (), *, calls: bool = True
) -> Parsed:
    """Read a whole turn at once; arguments as of `make_parser`."""
    parser = make_parser(renderer, tools, calls=calls)
    parser.feed(token_ids)
    return parser.finish()[1]

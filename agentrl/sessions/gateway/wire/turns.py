"""Messages out of the pieces that protocols have them in: a turn's texts, reasoning and calls; a user's texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrl.sessions.gateway.wire.images import joined, pieces_of
from agentrl.types import Message, Part, ToolCall


def assistant_message(texts: Iterable[str], thoughts: Iterable[str], calls: Sequence[ToolCall]) -> Message:
    """The assistant's message of these pieces."""
    content = "".join(texts)
    return Message(
        role="assistant",
        content=content if content or not calls else None,
        reasoning_content="".join(thoughts) or None,
        tool_calls=[*calls] or None,
    )


def add_turn(messages: list[Message], said: Message) -> None:
    """Append the assistant's message, or join it to one: clients send a beginning, or a stream's parts, apart."""
    if not messages or messages[-1].role != "assistant":
        messages.append(said)
        return
    first = messages.pop()
    joined = Message(
        role="assistant",
        content=None if first.content is said.content is None else first.text + said.text,
        reasoning_content="".join(filter(None, (first.reasoning_content, said.reasoning_content))) or None,
        tool_calls=[*(first.tool_calls or ()), *(said.tool_calls or ())] or None,
    )
    messages.append(joined)


def add_piece(messages: list[Message], piece: str | Part) -> None:
    """Append what a user says or shows, or join it to what stands before it."""
    before = pieces_of(messages.pop().content) if messages and messages[-1].role == "user" else []
    messages.append(Message(role="user", content=joined([*before, piece])))

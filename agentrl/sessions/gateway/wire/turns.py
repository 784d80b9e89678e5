"""Messages out of the pieces that protocols have them in: a turn's texts, reasoning and calls; a user's texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentrl.types import Message, ToolCall


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


def add_text(messages: list[Message], text: str) -> None:
    """Append what a user says, or join it to what stands before it."""
    before = messages.pop().text if messages and messages[-1].role == "user" else ""
    messages.append(Message(role="user", content=before + text))

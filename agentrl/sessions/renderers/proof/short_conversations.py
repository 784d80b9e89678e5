"""Short conversations in place of long ones: `probe.py` renders them to find the tokens that a new message adds."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.types import FunctionCall, Message, Node, Tokenizer, ToolCall

USER = Message(role="user", content="u")


def common(one: Sequence[int], two: Sequence[int]) -> int:
    """Return the number of tokens that two lists begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def run_around(tokenizer: Tokenizer, ids: Sequence[int], at: int) -> tuple[int, int]:
    """Return the bounds of the text around a place: the added tokens before and behind it, or the list's ends."""
    added = frozenset(getattr(tokenizer, "added", {}).values())
    start = next((n + 1 for n in range(min(at, len(ids)) - 1, -1, -1) if ids[n] in added), 0)
    end = next((n for n in range(at, len(ids)) if ids[n] in added), len(ids))
    return start, end


def node_of(message: Message, ids: list[int]) -> Node:
    """A node out of any tree."""
    return Node(0, None, message, ids, [], [])


def calling(calls: Sequence[tuple[str, str]]) -> Message:
    """A turn that makes these calls (id, name), or a single letter."""
    made = [ToolCall(id=index, function=FunctionCall(name=name or "f")) for index, name in calls]
    return Message(role="assistant", content="" if made else "a", tool_calls=made or None)


def like(message: Message, calls: Sequence[tuple[str, str]], results: Sequence[Message]) -> list[Message]:
    """Short messages that end as `message` does; tool results find a call of their id before them."""
    wanted = [(m.tool_call_id or "call_0", m.name or "f") for m in results]
    if message.role == "assistant":
        return [USER, calling(calls or wanted)]
    if message.role == "tool":
        own = (message.tool_call_id or "call_0", message.name or "f")
        result = Message(role="tool", content="r", tool_call_id=own[0], name=own[1])
        return [USER, calling([own, *wanted]), result]
    return [Message(role=message.role, content="u")]

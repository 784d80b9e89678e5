"""Large texts are kept off the event loop: what can't fit is refused unread, what may is tokenised in a thread.

A text of n characters has at least n divided by the vocabulary's longest piece tokens, and no piece reaches over more
gaps between words than some number, mostly 1, so most of what is far too long is known to be so at once. The rest of it
is found by its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import orjson

from agentrl.errors import OutOfRoom
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import Message, Tokenizer

T = TypeVar("T")

LARGE = 16_384
"""Characters from which on a text is tokenised in a thread: about 5 ms of work."""
LARGE_BODY = 1 << 20
"""Bytes from which on a request's JSON is read in a thread: about 3 ms of work."""
_USUAL = 8  # characters a token, seldom more
_BORDER = 64  # tokens by which a text's beginning may be longer alone than as a beginning


def characters(messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
    """How much text messages and tools bring."""
    calls = sum(len(c.function.arguments) for message in messages for c in message.tool_calls or ())
    texts = sum(len(message.text) + len(message.reasoning_content or "") for message in messages)
    return texts + calls + (len(orjson.dumps(list(tools))) if tools else 0)


def check_length(tokenizer: Tokenizer, length: int, room: int) -> None:
    """Refuse a text that can't fit, without looking at it.

    Raises:
        OutOfRoom: each way of cutting `length` characters into tokens gives at least `room` of them.
    """
    longest = getattr(tokenizer, "longest", None)
    if longest and length // longest >= room:
        raise OutOfRoom(f"{length} characters are at least {length // longest} tokens, and there is room for {room}")


def check_text(tokenizer: Tokenizer, text: str, room: int) -> None:
    """Refuse a long text that can't fit, by as little of it as possible.

    Raises:
        OutOfRoom: it can't.
    """
    most = getattr(tokenizer, "most_gaps", None)
    gaps = text.count(" ") - 2 * text.count("  ")  # of a run of n blanks that is n modulo 2: never more than there are
    if most and gaps // most >= room:
        raise OutOfRoom(f"{gaps} or more words are at least {gaps // most} tokens, and there is room for {room}")
    check_beginning(tokenizer, text, room)


def check_beginning(tokenizer: Tokenizer, text: str, room: int) -> None:
    """Refuse a long text whose beginning alone has no room.

    Raises:
        OutOfRoom: it has not.
    """
    beginning = text[: _USUAL * (room + _BORDER)]
    if len(beginning) < len(text) and len(tokenizer.encode(beginning)) > room + _BORDER:
        raise OutOfRoom(f"the first {len(beginning)} of {len(text)} characters have no room in {room} tokens")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Do this here where `size` characters are few, else in a thread."""
    return work() if size < LARGE else await asyncio.to_thread(work)

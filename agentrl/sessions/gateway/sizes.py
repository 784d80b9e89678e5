"""Large texts are kept off the event loop: what can't fit is refused untokenised, the rest is tokenised in a thread.

A text of n characters has at least n divided by the vocabulary's longest piece tokens, and no piece contains more
gaps between words than some number, mostly 1, so most texts that are far too long are refused at once; for the others
the beginning is tokenised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import orjson

from agentrl.errors import TokenBudgetExceeded
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import Message, Tokenizer

T = TypeVar("T")

LARGE = 16_384
"""Characters from which on a text is tokenised in a thread: about 5 ms of work."""
LARGE_BODY = 1 << 20
"""Bytes from which on a request's JSON is read in a thread: about 3 ms of work."""
LARGE_HISTORY = 1 << 15
"""Bytes of new messages from which on they are converted and matched in a thread: up to 20 ms of work, where they are
short."""
MESSAGE = 64
"""The cost of a message besides its text, in characters."""
_USUAL = 8  # characters per token, rarely more
_BORDER = 64  # tokens by which a text's beginning may be longer by itself than within the text


def characters(messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
    """Return the number of characters of messages and tools, and `MESSAGE` more for each message."""
    calls = sum(len(c.function.arguments) for message in messages for c in message.tool_calls or ())
    texts = sum(len(message.text) + len(message.reasoning_content or "") for message in messages)
    return MESSAGE * len(messages) + texts + calls + (len(orjson.dumps(list(tools))) if tools else 0)


def check_length(tokenizer: Tokenizer, length: int, limit: int) -> None:
    """Refuse a text that can't fit, without looking at it.

    Raises:
        TokenBudgetExceeded: `length` characters are at least `limit` tokens, however they are tokenised.
    """
    longest = getattr(tokenizer, "longest", None)
    if longest and length // longest >= limit:
        least = length // longest
        raise TokenBudgetExceeded(f"{length} characters are at least {least} tokens; the budget allows {limit}")


def check_text(tokenizer: Tokenizer, text: str, limit: int) -> None:
    """Refuse a long text that can't fit, by as little of it as possible.

    Raises:
        TokenBudgetExceeded: it can't fit.
    """
    most = getattr(tokenizer, "most_gaps", None)
    gaps = text.count(" ") - 2 * text.count("  ")  # of a run of n blanks that is n modulo 2: never more than there are
    if most and gaps // most >= limit:
        least = gaps // most
        raise TokenBudgetExceeded(f"{gaps} or more words are at least {least} tokens; the budget allows {limit}")
    check_beginning(tokenizer, text, limit)


def check_beginning(tokenizer: Tokenizer, text: str, limit: int) -> None:
    """Refuse a long text whose beginning alone is longer than the budget; TokenBudgetExceeded where it is."""
    beginning = text[: _USUAL * (limit + _BORDER)]
    if len(beginning) < len(text) and len(tokenizer.encode(beginning)) > limit + _BORDER:
        chars = f"the first {len(beginning)} of {len(text)} characters"
        raise TokenBudgetExceeded(f"{chars} are more than the {limit} tokens that the budget allows")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Do this here where `size` characters are few, else in a thread."""
    return work() if size < LARGE else await asyncio.to_thread(work)

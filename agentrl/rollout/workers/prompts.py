"""Prompts between two processes: of each, only what is new since the session's last one crosses the connection.

A turn's prompt is its session's whole path, so whole prompts of T turns are T / 2 times the session. The sender says
how much of that one this begins with; both sides keep the last prompts, of so many tokens in all. Where the receiver
has another one or none, it asks for the whole.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import InfraError

KEPT_TOKENS = 1 << 24
"""Tokens that each side keeps, in 64 MiB."""


class ForgottenPrompt(InfraError):
    """The receiver does not have the prompt any more that another one continues."""


@dataclass(frozen=True, slots=True)
class Continued:
    """A prompt, by the one before it.

    Attributes:
        number: the sender's number of this one.
        base: that of the session's prompt before; None: there is none.
        kept: tokens at its beginning that this one begins with.
        rest: the tokens after those.
    """

    number: int
    base: int | None
    kept: int
    rest: array[int]


class LastPrompts:
    """The last prompt of each session; the least recently used ones are forgotten.

    Args:
        limit: tokens that all of them may have.
    """

    def __init__(self, limit: int = KEPT_TOKENS) -> None:
        self._limit, self._tokens = limit, 0
        self._found: OrderedDict[str, tuple[int, array[int]]] = OrderedDict()

    def get(self, session: str) -> tuple[int, array[int]] | None:
        """Return the session's number and tokens; None where they are not there."""
        if session in self._found:
            self._found.move_to_end(session)
        return self._found.get(session)

    def put(self, session: str, number: int, ids: array[int]) -> None:
        """Keep a prompt, in place of the session's earlier one."""
        if session in self._found:
            self._tokens -= len(self._found.pop(session)[1])
        self._found[session] = number, ids
        self._tokens += len(ids)
        while self._tokens > self._limit:
            self._tokens -= len(self._found.popitem(last=False)[1][1])


class PromptSender:
    """The side that has prompts."""

    def __init__(self, limit: int = KEPT_TOKENS) -> None:
        self._last, self._count = LastPrompts(limit), 0

    def shortened(self, session: str, input_ids: Sequence[int], *, whole: bool = False) -> Continued:
        """A prompt by the last one of its session; `whole`: by none."""
        ids, last = array("i", input_ids), self._last.get(session)
        self._count += 1
        self._last.put(session, self._count, ids)
        if last is None or whole:
            return Continued(self._count, None, 0, ids)
        kept = common(last[1], ids)
        return Continued(self._count, last[0], kept, ids[kept:])


class PromptReceiver:
    """The side that gets them, from several senders."""

    def __init__(self, limit: int = KEPT_TOKENS) -> None:
        self._last = LastPrompts(limit)

    def restored(self, session: str, prompt: Continued) -> array[int]:
        """The whole prompt.

        Args:
            session: a name that no other sender uses.
            prompt: as the sender shortened it.

        Raises:
            ForgottenPrompt: the one that it continues is not there any more, or not yet.
        """
        ids = prompt.rest
        if prompt.base is not None:
            number, base = self._last.get(session) or (None, ids)
            if number != prompt.base:
                raise ForgottenPrompt(f"prompt {prompt.base} of session {session} is not kept")
            ids = base[: prompt.kept] + prompt.rest
        self._last.put(session, prompt.number, ids)
        return ids


def common(one: array[int], other: array[int]) -> int:
    """Return how many tokens two prompts begin with together."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


def session_of(request_id: str) -> str:
    """The session that a request is of."""
    return request_id.partition("/")[0]

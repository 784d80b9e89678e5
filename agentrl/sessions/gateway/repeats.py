"""Identical requests: which of them are retries, and which want another sample.

A client that lost its reply asks again, and so does one that wants several samples of one prompt; what they ask is the
same. A repeat is a retry where it says so (the SDKs' header), or where its reply was lost: the connection broke while
the reply was on its way, or soon after its last byte was written. An operating system resets a connection that is
closed with bytes unread, and only then, so a client that has read its reply and leaves is told from one that has not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agentrl.types import Sampling

Replay = Literal["lost", "marked", "all"]
"""Which identical requests get the stored reply again: those whose reply was lost and those that say that they are
retries; only those that say so; or every one. All others are drawn afresh."""

BREAKS_WITHIN = 10.0
"""Seconds after a reply's last byte in which a reset says that it was not read; later ones are of idle connections."""
REPEATS_WITHIN = 60.0
"""Seconds after a reply was lost in which an identical request is its retry."""
REMEMBERED = 32
"""Lost and unanswered requests that a session remembers."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request: what it asks for, and the how-manieth fresh draw of it this is.

    `drawn` says that its reply is complete and being handed over.
    """

    digest: bytes
    samplings: tuple[Sampling, ...]
    attempt: int
    cancel: Callable[[], object]
    drawn: bool = False
    superseded: bool = False

    def same(self, other: Flight) -> bool:
        """Whether both ask for the same."""
        return self.digest == other.digest and self.samplings == other.samplings

    def supersede(self) -> int:
        """End it, since its client has repeated it; returns its attempt."""
        self.superseded = True
        self.cancel()
        return self.attempt


@dataclass
class Repeats:
    """What a session remembers of requests whose clients may ask again.

    `reopened` is when it was taken up from the store: its last reply may have been lost with the process before.
    """

    reopened: float | None = None
    unanswered: list[Flight] = field(default_factory=list)
    lost: list[tuple[float, Flight]] = field(default_factory=list)

    def note_unanswered(self, flight: Flight) -> None:
        """A request ended without a reply."""
        if not flight.superseded:
            self.unanswered = [*self.unanswered, flight][-REMEMBERED:]

    def note_lost(self, flight: Flight, handed_over: float) -> None:
        """The connection broke that a reply went out on, at `handed_over` (`time.monotonic()`)."""
        now = time.monotonic()
        if now - handed_over < BREAKS_WITHIN:
            self.lost = [*self.lost, (now, flight)][-REMEMBERED:]

    def take_lost(self, asked: Flight) -> int | None:
        """The attempt at the same request whose reply was lost lately, once; None where there is none."""
        oldest = time.monotonic() - REPEATS_WITHIN
        self.lost = [(at, flight) for at, flight in self.lost if at > oldest]
        for entry in self.lost:
            if entry[1].same(asked):
                self.lost.remove(entry)
                return entry[1].attempt
        return None

    def take_reopened(self) -> bool:
        """Whether the session was taken up from the store lately; told once."""
        lately = self.reopened is not None and self.reopened > time.monotonic() - REPEATS_WITHIN
        self.reopened = None
        return lately

    def take_unanswered(self, asked: Flight) -> bool:
        """Whether the same request ended without a reply before; told once."""
        for flight in self.unanswered:
            if flight.same(asked):
                self.unanswered.remove(flight)
                return True
        return False

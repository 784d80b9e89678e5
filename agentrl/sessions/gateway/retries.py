"""Identical requests: which of them are retries, and which request another sample.

A client that lost its reply repeats the request, and so does one that samples a prompt several times, one sample after
the other or many at once; all send the same. A repeat is a retry if its headers say so (the SDKs' count of tries, or
the key of the first try), or if its reply was lost: the connection broke soon after the reply's last byte was written.
An operating system resets a connection that is closed with bytes unread, and only then, so it is known whether a client
had read its reply when it disconnected. A retry of a request that ended without a reply is a sample of its own: nobody
else's request ends for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.types import Sampling

RetryDetection = Literal["lost", "marked", "all"]
"""The identical requests that are retries, which get the stored reply again: `lost`, those that say so or whose reply
was lost; `marked`, only those that say so; `all`, every one. Each other one gets a new sample."""

RESET_WINDOW = 10.0
"""Seconds after a reply's last byte within which a reset means that it was not read."""
RETRY_WINDOW = 60.0
"""Seconds after a reply was lost within which an identical request is its retry."""
MAX_REMEMBERED = 1024
"""Lost and unanswered requests that a session remembers: more than it can have in progress."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request in progress, and which attempt at it this is, counted from 0.

    `key` is the request's (`TurnRequest.key`). `repeats` says that its header calls it a retry, and that no earlier try
    is known to have ended without a reply; `unanswered` that it has ended so itself.
    """

    digest: bytes
    samplings: tuple[Sampling, ...]
    attempt: int
    cancel: Callable[[], object]
    key: str | None = None
    repeats: bool = False
    superseded: bool = False
    unanswered: bool = False

    def same(self, other: PendingRequest) -> bool:
        """Return whether both are the same request."""
        return self.digest == other.digest and self.samplings == other.samplings

    def supersede(self) -> int:
        """Cancel the request, since its client has repeated it; returns its attempt."""
        self.superseded = True
        self.cancel()
        return self.attempt


@dataclass
class Retries:
    """A session's requests that clients may repeat.

    `reopened` is when it was loaded from the store: its last reply may have been lost with the previous process.
    `unanswered` are the digests of requests that failed or were refused as too many. `keyed` are the latest requests
    that have a key.
    """

    reopened: float | None = None
    unanswered: list[int] = field(default_factory=list)
    lost: list[tuple[float, PendingRequest]] = field(default_factory=list)
    keyed: dict[tuple[str, int], PendingRequest] = field(default_factory=dict)

    def note_unanswered(self, request: TurnRequest) -> None:
        """A request ended without a reply."""
        self.unanswered = [*self.unanswered, request.digest()][-MAX_REMEMBERED:]

    def find_keyed(self, request: TurnRequest) -> PendingRequest | None:
        """The last request that was the same, by its key; None if there is none, or it ended without a reply."""
        found = None if request.key is None else self.keyed.get((request.key, request.digest()))
        return None if found is None or found.unanswered else found

    def note_key(self, request: TurnRequest, pending: PendingRequest) -> None:
        """Remember a request by its key, if it has one."""
        if request.key is not None:
            self.keyed.pop((request.key, request.digest()), None)
            self.keyed[request.key, request.digest()] = pending
            if len(self.keyed) > MAX_REMEMBERED:
                del self.keyed[next(iter(self.keyed))]

    def note_lost(self, pending: PendingRequest, sent: float) -> None:
        """The connection of a reply that was sent at `sent` (`time.monotonic()`) broke."""
        now = time.monotonic()
        if now - sent < RESET_WINDOW:
            self.lost = [*self.lost, (now, pending)][-MAX_REMEMBERED:]

    def take_lost(self, request: PendingRequest) -> int | None:
        """The attempt at the same request whose reply was lost a short time ago, once; None if there is none."""
        oldest = time.monotonic() - RETRY_WINDOW
        self.lost = [(at, pending) for at, pending in self.lost if at > oldest]
        for entry in self.lost:
            if entry[1].same(request):
                self.lost.remove(entry)
                return entry[1].attempt
        return None

    def take_reopened(self) -> bool:
        """Return True once if the session was loaded from the store a short time ago."""
        recently = self.reopened is not None and self.reopened > time.monotonic() - RETRY_WINDOW
        self.reopened = None
        return recently

    def take_unanswered(self, request: TurnRequest) -> bool:
        """Return True once if the same request ended without a reply before."""
        if not self.unanswered or (digest := request.digest()) not in self.unanswered:
            return False
        self.unanswered.remove(digest)
        return True

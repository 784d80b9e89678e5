"""Attempts at a request: a retry gets the stored reply, any other a new sample with a seed of its own.

Attempts at the same request are numbered from 0. A choice's seed follows from the session's seed, the path and the
attempt's number, not from arrival times, unless the client gave a seed. A seed that is ignored (`Limits.sampling`)
counts as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.sessions.gateway.retries import PendingRequest, RetryDetection
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.types import Node, Sampling


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at one request.

    Attributes:
        state: the session's.
        request: the request; its sampling's `seed` is None where the client gave none.
        parent: the node that its turns follow; None while that is not stored.
        opening: the untrained tokens that its turns begin with.
        digest: of the path's tokens up to the opening.
        sampling: the parameters of its turns, but for the seed.
        remaining: how many more tokens the budgets allow.
        detection: which identical requests are retries.
        mixed: whether a client's seed is mixed with session, sample and path: sessions that give the same one differ.
    """

    state: SessionState
    request: TurnRequest
    parent: int | None
    opening: Sequence[int]
    digest: bytes
    sampling: Sampling
    remaining: int
    detection: RetryDetection
    mixed: bool = False

    def samplings(self, attempt: int) -> tuple[Sampling, ...]:
        """The parameters of each choice, with its seed."""
        return tuple(replace(self.sampling, seed=self._seed(choice, attempt)) for choice in range(self.request.n))

    def _seed(self, choice: int, attempt: int) -> int:
        given = self.request.sampling.seed
        if given is None:
            return self.state.seed(self.digest, choice, attempt)
        return self.state.seed(b"%d/" % given + self.digest, choice, 0) if self.mixed else given + choice

    def stored(self, attempt: int) -> list[Node] | None:
        """The stored turns of an attempt; None unless all choices are there."""
        if self.parent is None:
            return None
        return self.state.stored_turns(self.parent, self.opening, self.samplings(attempt), self.remaining)

    def retried(self, pending: PendingRequest) -> int | None:
        """The attempt whose stored reply answers this request; None if turns are to be generated."""
        retries, detect_lost = self.state.retries, self.detection == "lost"
        keyed = retries.find_keyed(self.request)
        retries.note_key(self.request, pending)
        if keyed is not None:
            pending.repeats = True
            return keyed.attempt if self.stored(keyed.attempt) else None
        lost = retries.take_lost(pending) if detect_lost or self.request.retry else None
        if lost is not None:
            return lost
        pending.repeats = bool(self.request.retry) and not retries.take_unanswered(self.request)
        if self.request.sampling.seed is not None:
            return 0  # the same seed is the same sample
        if pending.repeats:
            return self._newest()
        if detect_lost and (newest := self._newest()) is not None:
            nodes = self.stored(newest)
            if nodes and nodes[-1] is self.state.session.nodes[-1] and retries.take_reopened():
                return newest
        return 0 if self.detection == "all" else None

    def next(self, pending: PendingRequest) -> int:
        """This request's attempt, if turns are to be generated; one that repeats another request ends that one."""
        same = [other for other in self.state.pending if other.same(pending)]
        tried = [other for other in same if pending.key in (None, other.key)]
        if tried and pending.repeats:
            return tried[0].supersede()
        attempt = 0
        if self.request.sampling.seed is None:
            in_progress = {other.attempt for other in same}
            while attempt in in_progress or self.stored(attempt):
                attempt += 1
        return attempt

    def _newest(self) -> int | None:
        """The last attempt that is stored."""
        attempt = 0
        while self.stored(attempt):
            attempt += 1
        return attempt - 1 if attempt else None

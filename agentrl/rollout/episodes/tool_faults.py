"""Sessions whose tools fail in every attempt, while other groups' tools answer.

What fails by the infrastructure is generated again, and never trained on or scored. A policy could use that: no game is
lost whose tools are broken before its end. So where all attempts but the last failed inside a tool call, the last one
begins when it is known whether a session of another group got answers meanwhile. Where one did, and the last attempt
fails in the same way, it ends as an AGENT_ERROR with the reward that it has so far (`envs.results.failed`). Where a run
has no retries, such a session has that one.

Where nothing else is under way, nothing tells that from tools that are down, and the infrastructure is blamed: except
for as many sessions as were found to fail alone before, or a policy would gain by those games that end last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.envs.results import IN_TOOLS, TOOL_FAULTS
from agentrl.types import Session, Status


class ToolFaults:
    """The evidence of a run's sessions on each other's tools."""

    def __init__(self) -> None:
        self._playing: set[_Attempts] = set()
        self._failed: set[_Attempts] = set()  # of these
        self._unanswered: dict[bool, set[_Attempts]] = {False: set(), True: set()}  # of these, by `called_tools`
        self._alone = 0

    @contextmanager
    def playing(self) -> Iterator[_Attempts]:
        """The block plays a session, all its attempts."""
        attempts = _Attempts(self)
        self._playing.add(attempts)
        try:
            yield attempts
        finally:
            self._playing.remove(attempts)
            for some in (self._failed, *self._unanswered.values()):
                some.discard(attempts)
            self.settle()

    def failed(self, attempts: _Attempts) -> None:
        """Note that the infrastructure failed an attempt of theirs."""
        self._failed.add(attempts)
        if not attempts.others_answered:
            self._unanswered[attempts.called_tools].add(attempts)

    def ended(self, session: Session) -> None:
        """Note how an attempt at any session ended: where it was answered, so is what failed in other groups by then.

        Each of those is looked at once, however many sessions end, but for those of the session's own group.
        """
        for called_tools in _answers(session):
            unanswered = self._unanswered[called_tools]
            for attempts in [each for each in unanswered if each.is_of_other_group(session)]:
                unanswered.discard(attempts)
                attempts.others_answered = True
                attempts.settle()

    def found_alone(self) -> None:
        """Note a session that failed while others were answered."""
        self._alone += 1

    def presume_alone(self) -> bool:
        """Return whether a session of which nothing can be told is taken for one that fails alone."""
        presumed = self._alone > 0
        self._alone -= presumed
        return presumed

    def settle(self) -> None:
        """Let nobody wait where all wait."""
        if len(self._failed) == len(self._playing) and all(one.waiting is not None for one in self._failed):
            for attempts in self._failed:
                attempts.settle()


class _Attempts:
    """The attempts at one session.

    Attributes:
        waiting: what it waits for before its last attempt; None where it does not wait.
        others_answered: a session of another group shows that what the first attempt failed by works.
    """

    def __init__(self, faults: ToolFaults) -> None:
        self.waiting: asyncio.Future[None] | None = None
        self._faults = faults
        self._lost: list[Session] = []
        self.others_answered = False

    @property
    def called_tools(self) -> bool:
        """True where the first attempt called tools, which only a session whose tools answered clears."""
        return bool(self._lost[0].counters.get("tool_calls"))

    def is_of_other_group(self, session: Session) -> bool:
        """Return whether a session is not of the group that the attempts are of."""
        own = self._lost[0]
        return (session.phase, session.group_number) != (own.phase, own.group_number)

    def lost(self, session: Session) -> None:
        """Note an attempt that the infrastructure failed."""
        self._lost.append(session)
        self._faults.failed(self)

    def settle(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def judge(self, following: Session, retries: int, seconds: float) -> bool:
        """Count, in the last attempt, those before it that failed by what looks like the agent's fault; whether it did.

        Args:
            following: the attempt that is to begin.
            retries: how many attempts there are after the first.
            seconds: how long to wait at most for other groups.
        """
        if not self._lost or len(self._lost) < retries or not all(IN_TOOLS in lost.counters for lost in self._lost):
            return False
        if not self.others_answered:
            self.waiting = asyncio.get_running_loop().create_future()
            self._faults.settle()
            await asyncio.wait({self.waiting}, timeout=max(seconds, 0.0))
            self.waiting = None
        if self.others_answered:
            self._faults.found_alone()
        alone = self.others_answered or self._faults.presume_alone()
        if alone:
            following.count(TOOL_FAULTS, len(self._lost))
        return alone


def _answers(session: Session) -> Iterator[bool]:
    """Yield which attempts' failures a session clears, by whether they had called tools."""
    if session.status in (Status.INFRA_ERROR, Status.ABORTED) or IN_TOOLS in session.counters:
        return
    if session.turns > 0:
        yield False
    if session.counters.get("tool_calls", 0) > session.counters.get("tool_errors", 0):
        yield True

"""What is wrong with a batch of sessions, in sentences: a run of which nothing comes says so, and does not go on.

One session that fails is ordinary. Told is what all of a batch have in common: they failed, were cut off, had no
turn, got no reward. A run is stopped where going on can't help: its sessions have no turns, step after step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.errors import AgentError, InfraError, brief
from agentrl.types import Group, Session, Status

DRAWS = 3
"""How often a batch is drawn of which every session fails by infrastructure, before that is an error."""
DRAW_SECONDS = 5.0
"""Between two draws of a batch."""
STEPS_WITHOUT_TURNS = 3
"""Steps in a row without a single turn, after which a run is stopped."""
STEPS_WITHOUT_SIGNAL = 5
"""Steps in a row from which nothing could be learned, after which that is told."""
_TOLD = {size * power for power in (1, 10, 100, 1000, 10_000, 100_000) for size in (1, 2, 5)}
FAILURES = (Status.INFRA_ERROR, Status.AGENT_ERROR)


def sessions_of(groups: Sequence[Group]) -> list[Session]:
    """The groups' sessions, in order."""
    return [session for group in groups for session in group.sessions]


def worked(session: Session) -> bool:
    """Whether a session says something of its policy: it had a turn and did not fail, or earned something."""
    return (session.turns > 0 and session.status not in FAILURES) or (session.score or 0.0) > 0.0


def all_lost(groups: Sequence[Group]) -> bool:
    """Whether our machinery failed in every session."""
    sessions = sessions_of(groups)
    return bool(sessions) and all(session.status is Status.INFRA_ERROR for session in sessions)


async def redrawn(draw: Callable[[], Awaitable[list[Group]]], name: str, tell: Callable[[str], None]) -> list[Group]:
    """Draw a batch, anew where our machinery failed in every session.

    Args:
        draw: draws it, from the same seeds each time.
        name: what it is called.
        tell: is told of each draw that failed.

    Raises:
        InfraError: `DRAWS` of them failed.
    """
    for attempt in range(1, DRAWS + 1):
        groups = await draw()
        if not all_lost(groups):
            break
        told = f"{name}, draw {attempt} of {DRAWS}: {finding(sessions_of(groups))}"
        if attempt == DRAWS:
            raise InfraError(told)
        tell(told)
        await asyncio.sleep(DRAW_SECONDS)
    return groups


def finding(sessions: Sequence[Session]) -> str:
    """What all sessions have in common that they should not, with counts and the first error; '' where nothing."""
    count, ends = len(sessions), Counter(session.status for session in sessions)
    silent = sum(session.turns == 0 for session in sessions)
    if not count:
        return ""
    if sum(ends[status] for status in FAILURES) == count:
        kinds = ", ".join(f"{ends[status]} {status.name}" for status in FAILURES if ends[status])
        beside = f", {silent} without a turn" if silent else ""
        return f"all {count} sessions failed ({kinds}{beside})" + _first(sessions)
    if silent == count:
        return f"all {count} sessions had 0 turns" + _first(sessions)
    if ends[Status.TRUNCATED] == count:
        whys = Counter(brief(session.error) for session in sessions if session.error)
        told = "; ".join(f"{number} times: {why}" for why, number in whys.most_common(2))
        return f"all {count} sessions were TRUNCATED" + (f"; {told}" if told else "")
    if all(session.score is None for session in sessions):
        return f"none of {count} sessions was rewarded" + _first(sessions)
    return ""


def failures(sessions: Sequence[Session]) -> str:
    """How many sessions failed, and how the first of them did; '' where none."""
    failed = [session for session in sessions if session.status in FAILURES]
    ends = Counter(session.status for session in failed)
    told = ", ".join(f"{number} {status.name}" for status, number in sorted(ends.items()))
    return f"{len(failed)} of {len(sessions)} sessions failed ({told}){_first(failed)}" if failed else ""


def _first(sessions: Sequence[Session]) -> str:
    errors = [session.error for session in sessions if session.error]
    return f"; the first: {brief(errors[0])}" if errors else ""


class Health:
    """The steps of a run, seen one after the other.

    Attributes:
        worked: whether any session of any step did.
    """

    def __init__(self) -> None:
        self.worked = False
        self._streaks: Counter[str] = Counter()

    def see(self, groups: Sequence[Group], *, signal: bool) -> list[str]:
        """What there is to tell of a step. What goes on is told again after 2, 5, 10, 20, 50 … steps of it.

        Args:
            groups: the step's.
            signal: whether some session was better than it could be expected to be, or worse.

        Raises:
            AgentError: sessions had no turns for `STEPS_WITHOUT_TURNS` steps.
        """
        sessions, told = sessions_of(groups), []
        self.worked |= any(map(worked, sessions))
        found = finding(sessions)
        if lasting := self._lasting("batch", bool(found)):
            told.append(found + (f" (for {lasting} steps in a row)" if lasting > 1 else ""))
        if self._streak("turns", not any(session.turns for session in sessions)) == STEPS_WITHOUT_TURNS:
            raise AgentError(f"no session had a turn for {STEPS_WITHOUT_TURNS} steps in a row: {found}")
        lasting = self._lasting("signal", not signal)
        if lasting >= STEPS_WITHOUT_SIGNAL:
            told.append(f"nothing could be learned from the last {lasting} steps: {_alike(sessions)}")
        return told

    def _streak(self, kind: str, goes_on: bool) -> int:
        self._streaks[kind] = self._streaks[kind] + 1 if goes_on else 0
        return self._streaks[kind]

    def _lasting(self, kind: str, goes_on: bool) -> int:
        """For how many steps it goes on, where it is time to tell; else 0."""
        streak = self._streak(kind, goes_on)
        return streak if streak in _TOLD else 0


def _alike(sessions: Sequence[Session]) -> str:
    scores: list[Any] = [session.score for session in sessions if session.score is not None]
    if not scores:
        return "no session was rewarded"
    if min(scores) == max(scores):
        return f"all {len(scores)} sessions of the last one scored {scores[0]:g}, so none is better than another"
    return "within each group all sessions scored the same, so none is better than another"

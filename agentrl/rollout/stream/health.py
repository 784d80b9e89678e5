"""Warnings about a batch of sessions, and the conditions that end a run.

Single failures are ordinary. Reported is what all sessions of a batch have in common: they failed, were truncated, had
no turn, got no reward. A batch in which every session failed by infrastructure is generated again a few times, then the
run ends; so it does where sessions have no turns for several steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.envs.results import INVALID, TOOL_FAULTS, invalid
from agentrl.errors import AgentError, EnvError, InfraError, brief
from agentrl.sessions.gateway.wire.fields import SAMPLING
from agentrl.sessions.renderers.base import UNWRITTEN_NAMES
from agentrl.sessions.tree.trainability import Untrainable
from agentrl.types import MAIN, Group, Session, Status

MAX_ATTEMPTS = 3
"""Attempts at a batch in which every session fails by infrastructure, before that is an error."""
RETRY_SECONDS = 5.0
"""Seconds between two attempts at a batch."""
STEPS_WITHOUT_TURNS = 3
"""Steps in a row without a single turn, after which a run ends."""
STEPS_WITHOUT_SIGNAL = 5
"""Steps in a row from which nothing could be learned, after which there is a warning."""
_REPORTED = {size * power for power in (1, 10, 100, 1000, 10_000, 100_000) for size in (1, 2, 5)}
FAILURES = (Status.INFRA_ERROR, Status.AGENT_ERROR)


def sessions_of(groups: Sequence[Group]) -> list[Session]:
    """The groups' sessions, in order."""
    return [session for group in groups for session in group.sessions]


def has_worked(session: Session) -> bool:
    """Return whether a session is evidence about its policy: it had a turn and did not fail, or a positive score."""
    return (session.turns > 0 and session.status not in FAILURES) or (session.score or 0.0) > 0.0


def all_failed(groups: Sequence[Group]) -> bool:
    """Return whether every session ended in an infrastructure error."""
    sessions = sessions_of(groups)
    return bool(sessions) and all(session.status is Status.INFRA_ERROR for session in sessions)


async def with_retries(
    generate: Callable[[], Awaitable[list[Group]]], name: str, warn: Callable[[str], None]
) -> list[Group]:
    """Generate a batch, again where every session ended in an infrastructure error.

    Args:
        generate: makes an attempt, from the same seeds each time.
        name: what messages call the batch.
        warn: called with a message after each failed attempt but the last.

    Raises:
        InfraError: `MAX_ATTEMPTS` of them failed.
        EnvError: every session had a reward, or a critic's view, that is no finite number in its range.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        groups = await generate()
        if not all_failed(groups):
            break
        if all(map(invalid, sessions_of(groups))):
            raise EnvError(f"{name}: {finding(sessions_of(groups))}")
        message = f"{name}, attempt {attempt} of {MAX_ATTEMPTS}: {finding(sessions_of(groups))}"
        if attempt == MAX_ATTEMPTS:
            raise InfraError(message)
        warn(message)
        await asyncio.sleep(RETRY_SECONDS)
    return groups


def finding(sessions: Sequence[Session]) -> str:
    """Say what is wrong with all of the sessions, with counts and the first error; '' where nothing is."""
    count, ends = len(sessions), Counter(session.status for session in sessions)
    silent = sum(session.turns == 0 for session in sessions)
    if not count:
        return ""
    if sum(ends[status] for status in FAILURES) == count:
        beside = f", {silent} without a turn" if silent else ""
        return f"all {count} sessions failed ({_kinds(sessions)}{beside})" + _first(sessions)
    if silent == count:
        return f"all {count} sessions had 0 turns" + _first(sessions)
    if ends[Status.TRUNCATED] == count:
        whys = Counter(brief(session.error) for session in sessions if session.error)
        reasons = "; ".join(f"{number} times: {why}" for why, number in whys.most_common(2))
        return f"all {count} sessions were TRUNCATED" + (f"; {reasons}" if reasons else "")
    if all(session.score is None for session in sessions):
        return f"none of {count} sessions was rewarded" + _first(sessions)
    return ""


def failures(sessions: Sequence[Session]) -> str:
    """Say how many sessions failed, and how the first of them did; '' where none."""
    failed = [session for session in sessions if session.status in FAILURES]
    return f"{len(failed)} of {len(sessions)} sessions failed ({_kinds(failed)}){_first(failed)}" if failed else ""


def _kinds(failed: Sequence[Session]) -> str:
    kinds = Counter(INVALID.get(invalid(session)) or session.status.name for session in failed)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))


def overlong(sessions: Sequence[Session]) -> str:
    """Say how many sessions have no turn because their prompt left no room for one; '' where none."""
    found = [session for session in sessions if session.overlong]
    kept = "are rewarded as they are" if any(session.score is not None for session in found) else "don't count"
    words = f"the prompts of {len(found)} of {len(sessions)} sessions leave no room for a turn; these {kept}"
    return f"{words} (rollout.overlong){_first(found)}" if found else ""


def sampling_notes(sessions: Sequence[Session], *, trained: bool) -> list[str]:
    """List notes, once each, on sampling and rewards that were not taken; `trained`: they are for training."""
    counted = {name for session in sessions for name in session.counters}
    notes = [
        f"the agent program sends {field!r}, which is ignored: the run's own sampling decides "
        "(gateway.sampling=client takes the program's)"
        for field in SAMPLING
        if f"gateway/ignored/{field}" in counted
    ]
    notes += [
        f"sessions {words} (no finite number in its range) are left out, and not played again: the environment's code "
        f"gives it (count/{name}); their errors say which"
        for name, words in INVALID.items()
        if name in counted
    ]
    if named := sorted({UNWRITTEN_NAMES, "gateway/ignored/name"} & counted):
        notes.append(
            "messages have a name that the model does not see, since its format writes none: put who speaks into the "
            f"text (count/{named[0]})"
        )
    if TOOL_FAULTS in counted:
        notes.append(
            "sessions failed by the infrastructure inside a tool call in every attempt, while other groups' tools "
            f"answered: they end as AGENT_ERROR, with the reward that they have (count/{TOOL_FAULTS})"
        )
    if trained and "gateway/excluded" in counted:
        notes.append(
            "roots beside the task (titles, summaries) are neither trained on nor credited: gateway.exclude says which "
            "(count/gateway/excluded)"
        )
    notes += [
        f"sampled tokens are not trained on: {reason.words} (count/untrainable/{reason}; docs/engines.md#supports)"
        for reason in Untrainable
        if trained and f"untrainable/{reason}" in counted
    ]
    return notes


def _first(sessions: Sequence[Session]) -> str:
    errors = [session.error for session in sessions if session.error]
    return f"; the first: {brief(errors[0])}" if errors else ""


class HealthMonitor:
    """Watches the steps of a run, one after the other.

    Attributes:
        worked: whether any session of any step did.
    """

    def __init__(self) -> None:
        self.worked = False
        self._streaks: Counter[str] = Counter()

    def check(self, groups: Sequence[Group], *, signal: bool) -> list[str]:
        """Warnings about a step. A lasting condition is reported again after 2, 5, 10, 20, 50 … steps.

        Raises:
            AgentError: sessions had no turns for `STEPS_WITHOUT_TURNS` steps.
        """
        sessions, warnings = sessions_of(groups), []
        self.worked |= any(map(has_worked, sessions))
        found = finding(sessions)
        if lasting := self._lasting("batch", bool(found)):
            warnings.append(found + (f" (for {lasting} steps in a row)" if lasting > 1 else ""))
        elif (long := overlong(sessions)) and self._lasting("overlong", True):
            warnings.append(long)
        if self._streak("turns", not any(session.turns for session in sessions)) == STEPS_WITHOUT_TURNS:
            raise AgentError(f"no session had a turn for {STEPS_WITHOUT_TURNS} steps in a row: {found}")
        return warnings + self.check_signal(sessions, signal=signal)

    def check_signal(self, sessions: Sequence[Session], *, signal: bool) -> list[str]:
        """A warning, or none, where for some steps no advantage was other than 0; reported again as in `check`."""
        lasting = self._lasting("signal", not signal)
        if lasting < STEPS_WITHOUT_SIGNAL:
            return []
        return [f"nothing could be learned from the last {lasting} steps: {_alike(sessions)}"]

    def check_updates(self, policy: str, skipped: float) -> list[str]:
        """A warning, or none, where updates of a policy were skipped in a step; reported again as in `check`."""
        if not (lasting := self._lasting(f"updates of {policy}", skipped > 0)):
            return []
        steps = f" (in {lasting} steps in a row)" if lasting > 1 else ""
        whose = "" if policy == MAIN else f" of {policy}"
        return [f"{skipped:g} updates{whose} were skipped{steps}: their gradient was not finite (skipped_updates)"]

    def _streak(self, kind: str, lasts: bool) -> int:
        self._streaks[kind] = self._streaks[kind] + 1 if lasts else 0
        return self._streaks[kind]

    def _lasting(self, kind: str, lasts: bool) -> int:
        """The steps for which a condition has lasted, where that is to be reported; else 0."""
        streak = self._streak(kind, lasts)
        return streak if streak in _REPORTED else 0


def _alike(sessions: Sequence[Session]) -> str:
    scores: list[Any] = [session.score for session in sessions if session.score is not None]
    if not scores:
        return "no session was rewarded"
    if min(scores) == max(scores):
        return f"all {len(scores)} sessions of the last one scored {scores[0]:g}, so none is better than another"
    return "within each group all sessions scored the same, so none is better than another"

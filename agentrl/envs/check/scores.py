"""The table of scores: what six trivial agents get beside the expert, and what follows from it.

All of them play the same tasks. A trivial agent that gets what the expert gets is a fault, and so is one that gets half
of the way from silence to the expert, where no chance explains it (`Env.chance_of`). In a game in which one wins what
the others lose, near-equal scores are the rule: there an agent that makes moves is at fault only where it beats the
expert.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from statistics import fmean, stdev

from agentrl.envs.base import Env, reward_methods
from agentrl.envs.check import trivial
from agentrl.envs.check.findings import Note, Scores
from agentrl.envs.check.subject import EXPERT, Subject
from agentrl.types import Session, Task

FEWEST = 3
"""Tasks that a score is compared over, at least."""
ENOUGH = 10
"""Tasks from which on half of the way counts."""
SURE = 1.96
"""Standard errors of an interval: 95 %."""
HALF, FIFTH = 0.5, 0.2
CHANCE_MARGIN = 0.03
"""By how much a declared chance may be off, besides the interval."""
TOLERANCE = 1e-6
"""Rewards are added up in floating point."""
EXAMPLES = 3
MOVING = (trivial.CONSTANT, trivial.RANDOM)
"""Trivial agents that may well make legal moves."""
WHY = {
    trivial.SILENT: "saying nothing is rewarded",
    trivial.UNANSWERING: "an episode without an answer is rewarded: give nothing where it was cut off",
    trivial.CONSTANT: "one message fits all tasks: compute the reward from the task and what was done in it",
    trivial.ECHOING: "repeating what tools or the prompt say is rewarded",
    trivial.PASTING: "naming every answer is rewarded: compare the whole answer, not a part of it",
    trivial.RANDOM: "random valid play is rewarded: ask for more, or declare `chance`",
}
"""The change that an author makes, by the agent that gets the reward, the simplest agent first."""


@dataclass(frozen=True)
class _Row:
    """One agent's scores by task."""

    agent: str
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.scores)

    @property
    def margin(self) -> float:
        return interval(self.scores)

    def __str__(self) -> str:
        return f"{self.agent} {self.mean:.2f} ± {self.margin:.2f}"


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean."""
    return SURE * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


async def play_all(subject: Subject) -> None:
    """Play the tasks of all splits in turn with the expert and the trivial agents, as long as there is time."""
    began = time.monotonic()
    tasks = _tasks(subject)
    for task in tasks if subject.expert else ():
        await subject.episode(task, EXPERT)
        if time.monotonic() - began > subject.seconds / len(trivial.AGENTS):
            break
    for episode, session in subject.played():
        if episode.agent == EXPERT:
            subject.known.add(session)
    for task in tasks:
        if subject.expert and not subject.has_played(task, EXPERT):
            break
        for name in trivial.AGENTS:
            for seat in range(len(subject.env.agents)):
                await subject.trivial_episode(task, name, seat)
        subject.scored.append(task)
        if time.monotonic() - began > subject.seconds:
            break
    subject.played_seconds = time.monotonic() - began


def _tasks(subject: Subject) -> list[Task]:
    """Those of all splits in turn, so many as are wanted."""
    turns = chain.from_iterable(zip_longest(*(listed for listed, _ in subject.splits.values())))
    return list(islice((task for task in turns if task is not None), subject.wanted))


async def compare_scores(subject: Subject) -> AsyncIterator[str | Note]:
    """No trivial agent gets what the expert gets, nor half of it where no chance explains it."""
    rows = await table(subject)
    if not rows:
        return
    expert = rows.get(EXPERT)
    subject.scores = Scores(
        tuple((row.agent, row.mean, row.margin) for row in rows.values()),
        len(subject.scored),
        min(subject.wanted, len(_tasks(subject))),
        subject.played_seconds,
    )
    if len(subject.scored) < FEWEST:
        return
    low, top = declared_bounds(subject.env, (session for _, session in subject.played()))
    target = expert.scores if expert else (top,) * len(subject.scored)
    if not math.isfinite(fmean(target)) or fmean(target) <= low + TOLERANCE:
        return  # nothing is the most that there is; or an expert that fails in all tasks, a finding of its own
    zero_sum = _is_zero_sum(subject)
    reaching = [row for row in rows.values() if row.agent != EXPERT and _reaches(row, target, zero_sum)]
    if reaching:
        yield _fault(subject, reaching, f"what the expert gets, {fmean(target):.2f}" if expert else f"all, {top:g}")
    if zero_sum:
        return
    by_chance = subject.env.chance_of(subject.scored)
    floor = max(rows[trivial.SILENT].mean, low if by_chance is None else by_chance)
    over = [row for row in rows.values() if row.agent not in (EXPERT, trivial.SILENT) and row not in reaching]
    enough = len(subject.scored) >= ENOUGH
    half = [row for row in over if expert and enough and _half(row, floor, expert.mean, by_chance is not None)]
    if half and not reaching:
        yield _fault(subject, half, f"half of the way to what the expert gets, {fmean(target):.2f}, or more")
    for row in over:
        share = (row.mean - low) / (fmean(target) - low)
        if share > FIFTH and row not in half and not reaching and by_chance is None:
            yield Note(f"the {row} gets {share:.0%} of {fmean(target):.2f}, in {_examples(subject, row)}")


async def chance(subject: Subject) -> AsyncIterator[str]:
    """The chance that is declared is what random valid play gets."""
    declared, rows = subject.env.chance, await table(subject)
    if declared is None or len(subject.scored) < ENOUGH:
        return
    blind = [rows[name] for name in MOVING]
    least = rows[trivial.RANDOM].mean - rows[trivial.RANDOM].margin - CHANCE_MARGIN
    most = max(row.mean + row.margin for row in blind) + CHANCE_MARGIN
    if not least <= declared <= most:
        yield f"chance = {declared:g} is declared, and the {rows[trivial.RANDOM]} in {len(subject.scored)} tasks"


async def table(subject: Subject) -> dict[str, _Row]:
    """The scores by agent; empty where an episode failed."""
    rows: dict[str, _Row] = {}
    agents = subject.env.agents
    for name in ((EXPERT,) if subject.expert else ()) + trivial.AGENTS:
        found = []
        for task in subject.scored:
            seats = []
            for seat, agent in enumerate(agents):
                own = subject.episode(task, EXPERT) if name == EXPERT else subject.trivial_episode(task, name, seat)
                session = (await own).session
                if session is None:
                    return {}
                seats.append(trivial.score(session, agent))
            found.append(fmean(seats))
        if not found:
            return {}
        rows[name] = _Row(name, tuple(found))
    return rows


def _reaches(row: _Row, target: Sequence[float], zero_sum: bool) -> bool:
    differences = [own - wanted for own, wanted in zip(row.scores, target, strict=True)]
    margin = interval(differences)
    if zero_sum and row.agent in MOVING:
        return fmean(differences) - margin > TOLERANCE
    return fmean(differences) + margin >= -TOLERANCE


def _half(row: _Row, floor: float, expert: float, declared: bool) -> bool:
    """Return whether an agent gets half of the way; beyond a declared chance only what is sure counts."""
    return row.mean - (row.margin if declared else 0.0) >= floor + HALF * (expert - floor) - TOLERANCE


def _fault(subject: Subject, rows: Sequence[_Row], what: str) -> str:
    first = next(name for name in WHY if name in {row.agent for row in rows})
    words = ", ".join(map(str, rows))
    row = next(row for row in rows if row.agent == first)
    return f"{WHY[first]}: {words} reach {what} in {len(subject.scored)} tasks, as in {_examples(subject, row, 1)}"


def _examples(subject: Subject, row: _Row, number: int = EXAMPLES) -> str:
    best = sorted(range(len(row.scores)), key=lambda place: -row.scores[place])[:number]
    return ", ".join(f"task {subject.scored[place].id!r}" for place in best)


def _is_zero_sum(subject: Subject) -> bool:
    """Return whether the agents' rewards have the same sum in all of the expert's episodes."""
    if len(subject.env.agents) < 2:
        return False
    sums = {round(sum(_each(session)), 6) for episode, session in subject.played() if episode.agent == EXPERT}
    spread = any(len(set(_each(session))) > 1 for _, session in subject.played())
    return len(sums) == 1 and spread


def _each(session: Session) -> list[float]:
    given: Mapping[str, float | None] = session.agent_rewards
    return [trivial.score(session, agent) for agent in given]


def declared_bounds(env: Env, sessions: Iterable[Session], given: Container[str] | None = None) -> tuple[float, float]:
    """The least and the greatest score of sessions that the environment declares; `given`: of these rewards alone."""
    marks = [mark for mark, _ in reward_methods(env) if given is None or mark.name in given]
    ends = [sorted(mark.weight * end for end in mark.range) for mark in marks]
    if any(node.reward is not None for session in sessions for node in session.nodes):
        ends.append(list(env.return_range))
    return sum(low for low, _ in ends), sum(high for _, high in ends)

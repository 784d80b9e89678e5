"""Rules about rewards: ranges, what the expert gets, what nobody should get."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentrl.envs.base import RewardMark, reward_methods
from agentrl.envs.check.subject import EXPERT, SILENT, Episode, Subject
from agentrl.types import Session, Task

TOLERANCE = 1e-6
"""Step rewards are added up in floating point."""
ALIKE = 3
"""Tasks that bring the expert the same, before that counts as all that they bring."""


async def ranges(subject: Subject) -> AsyncIterator[str]:
    """Whatever an agent does, its step rewards add up to something in `return_range`.

    Final rewards outside their range are errors of the episode, which `failures` tells.
    """
    low, high = subject.env.return_range
    for episode, session in subject.played():
        steps = _steps(session)
        if not _within(subject, session):
            yield f"{episode.name}: step rewards of {sum(steps):g} in all, outside return_range {low:g} to {high:g}"
            return


async def rewarded(subject: Subject) -> AsyncIterator[str]:
    """There is something to learn from."""
    played = list(subject.played())
    if played and not reward_methods(subject.env) and all(session.score is None for _, session in played):
        yield "no episode was rewarded"


async def expert(subject: Subject) -> AsyncIterator[str]:
    """The expert succeeds.

    It may pay for its steps, and tasks may differ in what they bring. So a reward short of the best is a fault only
    where nothing was paid and all tasks bring the same, where it is the least that can be had, or where somebody else
    gets more.
    """
    if not subject.expert:
        return
    sums: list[float] = []
    for task in subject.tasks:
        episode = await subject.episode(task, EXPERT)
        session = episode.session
        if session is None:
            continue
        sums.append(sum(_steps(session)))
        complaints = _failed(subject, session)
        best, who = _best_of_others(subject, task)
        if best is not None and session.score is not None and best > session.score + TOLERANCE:
            complaints.append(f"{session.score:g} where a {who} got {best:g}")
        if complaints:
            subject.notes.add("the expert fails")
            yield f"task {task.id!r}: the expert got {'; '.join(complaints)} (status {session.status})"
            return
    paid = any(step < 0 for _, session in subject.played() for step in _steps(session))
    high = subject.env.return_range[1]
    stepped = any(_steps(session) for episode, session in subject.played() if episode.agent == EXPERT)
    alike = len(sums) >= ALIKE and max(sums) - min(sums) <= TOLERANCE
    if stepped and alike and not paid and max(sums) < high - TOLERANCE:
        yield f"the expert got step rewards of at most {max(sums):g} in all instead of {high:g} (return_range)"


async def silence(subject: Subject) -> AsyncIterator[str]:
    """Saying nothing does not get everything."""
    for task in subject.tasks:
        episode = await subject.episode(task, SILENT)
        if episode.session is None or episode.session.score is None:
            continue
        score = episode.session.score
        compared = subject.expert and "the expert fails" not in subject.notes
        wanted = (await subject.episode(task, EXPERT)).session if compared else None
        if wanted is not None and wanted.score is not None:
            enough = score >= wanted.score
        else:
            enough = not _failed(subject, episode.session) and not _short(subject, episode.session)
        if enough:
            yield f"task {task.id!r}: an agent that says nothing gets the maximum, {score:g}"
            return


def _within(subject: Subject, session: Session) -> bool:
    low, high = subject.env.return_range
    steps = _steps(session)
    return not steps or low - TOLERANCE <= sum(steps) <= high + TOLERANCE


def _best_of_others(subject: Subject, task: Task) -> tuple[float | None, str]:
    """The most that another agent got for a task, and who that was; who says nothing is another rule's."""
    silent = [session.score or 0.0 for episode, session in subject.played() if _is(episode, task, SILENT)]
    scores = [
        (session.score, episode.agent)
        for episode, session in subject.played()
        if episode.task.id == task.id and episode.agent not in (EXPERT, SILENT) and _within(subject, session)
    ]
    floor = max(silent, default=float("-inf"))
    return max(((score, agent) for score, agent in scores if score is not None and score > floor), default=(None, ""))


def _is(episode: Episode, task: Task, agent: str) -> bool:
    return episode.task.id == task.id and episode.agent == agent


def _failed(subject: Subject, session: Session) -> list[str]:
    """The final rewards of the greatest weight that are the worst that can be had, or missing altogether."""
    marks = [mark for mark, _ in reward_methods(subject.env)]
    heaviest = max((abs(mark.weight) for mark in marks), default=0.0)
    complaints = []
    for mark in (mark for mark in marks if abs(mark.weight) == heaviest):
        best, worst = _ends(mark)
        value = session.rewards.get(mark.name)
        if abs(value - worst) <= TOLERANCE if value is not None else session.score is None:
            complaints.append(f"{mark.name} = {value} instead of {best:g}")
    return complaints


def _short(subject: Subject, session: Session) -> bool:
    """Whether a session's rewards fall short of what the environment declares."""
    finals = [(session.rewards.get(mark.name), _ends(mark)[0]) for mark, _ in reward_methods(subject.env)]
    steps = _steps(session)
    short = bool(steps) and sum(steps) < subject.env.return_range[1] - TOLERANCE
    return short or any(value != best for value, best in finals)


def _ends(mark: RewardMark) -> tuple[float, float]:
    """The best and the worst value."""
    low, high = mark.range
    return (high, low) if mark.weight >= 0 else (low, high)


def _steps(session: Session) -> list[float]:
    return [node.reward for node in session.nodes if node.reward is not None]

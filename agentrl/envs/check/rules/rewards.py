"""Rules about rewards: ranges, the expert's and the demonstrator's, errors that rewards handle."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentrl.envs.base import Env, RewardMark, reward_methods
from agentrl.envs.check import places
from agentrl.envs.check.subject import DEMONSTRATING, EXPERT, RANDOM, SILENT, Episode, Subject
from agentrl.envs.episode import record
from agentrl.types import Session, Task

TOLERANCE = 1e-6
"""Step rewards are added up in floating point."""
DEMONSTRATED, TRACED = 8, 12
"""Tasks that are demonstrated, and whose rewards are traced."""
WRITTEN_WRONG = (NameError, ImportError, NotImplementedError, RecursionError)
"""Errors that no agent's answer causes."""
ALIKE = 3
"""Tasks in which the expert gets the same return, before that counts as the greatest possible one."""


async def ranges(subject: Subject) -> AsyncIterator[str]:
    """The sum of step rewards is in `return_range`, whatever the agent does.

    Final rewards outside their range are errors of the episode, which `failures` reports.
    """
    low, high = subject.env.return_range
    for episode, session in subject.played():
        steps = _steps(session)
        if not _within(subject, session):
            yield f"{episode.name}: step rewards of {sum(steps):g} in all, outside return_range {low:g} to {high:g}"
            return


async def rewarded(subject: Subject) -> AsyncIterator[str]:
    """Some episode has a reward."""
    played = list(subject.played())
    if played and not reward_methods(subject.env) and all(session.score is None for _, session in played):
        yield "no episode was rewarded"


async def expert(subject: Subject) -> AsyncIterator[str]:
    """The expert succeeds, and no other agent gets more.

    Steps may cost something, and the best return may differ between tasks. So a reward below the greatest is a
    violation only where no step costs anything and all tasks give the same, where it is the least possible one, or
    where another agent gets more.
    """
    if not subject.expert:
        return
    sums: list[float] = []
    failed: dict[str, str] = {}
    tasks = {task.id: task for task in [*subject.tasks, *subject.scored]}.values()
    for task in tasks:
        session = (await subject.episode(task, EXPERT)).session
        if session is None:
            continue
        sums.append(sum(_steps(session)))
        problems = _list_failed(subject, session)
        best, who = _best_of_others(subject, task) if task in subject.tasks else (None, "")
        if best is not None and session.score is not None and best > session.score + TOLERANCE:
            problems.append(f"{session.score:g} where a {who} got {best:g}")
        if problems:
            failed[task.id] = f"{'; '.join(problems)} (status {session.status})"
    if failed:
        task_id, problem = next(iter(failed.items()))
        yield f"task {task_id!r}: the expert got {problem}; it fails in {len(failed)} of {len(tasks)} tasks"
        return
    costs = any(step < 0 for _, session in subject.played() for step in _steps(session))
    high = subject.env.return_range[1]
    stepped = any(_steps(session) for episode, session in subject.played() if episode.agent == EXPERT)
    alike = len(sums) >= ALIKE and max(sums) - min(sums) <= TOLERANCE
    if stepped and alike and not costs and max(sums) < high - TOLERANCE:
        yield f"the expert got step rewards of at most {max(sums):g} in all instead of {high:g} (return_range)"


async def demonstrator(subject: Subject) -> AsyncIterator[str]:
    """The demonstrator is rewarded more than silence, and repeats."""
    if type(subject.env.unwrapped).demonstrate is Env.demonstrate:
        return
    scores, silent = [], []
    for number, task in enumerate((subject.scored or subject.tasks)[:DEMONSTRATED]):
        episode = await subject.play(task, DEMONSTRATING, 0)
        if episode.session is None:
            place = places.of_error(episode.error.__cause__ or episode.error) if episode.error else ""
            yield f"{episode.name}: {episode.error}{f' at {place}' if place else ''}"
            return
        scores.append(episode.session.score or 0.0)
        silence = (await subject.episode(task, SILENT)).session
        silent.append(silence.score or 0.0 if silence else 0.0)
        again = (await subject.play(task, DEMONSTRATING, 0)).session if not number else None
        if again is not None and record(again) != record(episode.session):
            yield f"{episode.name}: with the same `rng` it demonstrates something else: draw all chance from `rng`"
            return
    alone = len(subject.env.agents) == 1  # playing itself, it gets what any agent gets that plays itself
    if alone and len(scores) >= ALIKE and all(a <= b + TOLERANCE for a, b in zip(scores, silent, strict=True)):
        words = f"at most {max(scores):.2f} in {len(scores)} tasks"
        yield f"the demonstrator got {words}, in each no more than an agent that says nothing"


async def swallowed(subject: Subject) -> AsyncIterator[str]:
    """No reward handles an error of its own code.

    It would look like the agent's failure.
    """
    monitor = subject.monitor
    for task in (subject.scored or subject.tasks)[:TRACED]:
        for agent in dict.fromkeys((subject.default, RANDOM, SILENT)):
            monitor.handled = []
            try:
                session = (await subject.play(task, agent, 0)).session
            finally:
                handled, monitor.handled = monitor.handled, None
            if session is None:
                continue
            short = agent == EXPERT and bool(_list_failed(subject, session))
            found = [one for one in handled if short or issubclass(one.kind, WRITTEN_WRONG)]
            if found:
                yield (
                    f"task {task.id!r}, the {agent}'s episode: a reward met {found[0].error} at {found[0].place}, "
                    f"and gave {session.score if session.score is None else f'{session.score:g}'} all the same"
                )
                return


def _within(subject: Subject, session: Session) -> bool:
    low, high = subject.env.return_range
    steps = _steps(session)
    return not steps or low - TOLERANCE <= sum(steps) <= high + TOLERANCE


def _best_of_others(subject: Subject, task: Task) -> tuple[float | None, str]:
    """The highest score of another agent for a task, and which agent; the silent one has a rule of its own."""
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


def _list_failed(subject: Subject, session: Session) -> list[str]:
    """The final rewards of the greatest weight that have their worst value, or are missing."""
    marks = [mark for mark, _ in reward_methods(subject.env)]
    heaviest = max((abs(mark.weight) for mark in marks), default=0.0)
    problems = []
    for mark in (mark for mark in marks if abs(mark.weight) == heaviest):
        best, worst = _ends(mark)
        value = session.rewards.get(mark.name)
        if abs(value - worst) <= TOLERANCE if value is not None else session.score is None:
            problems.append(f"{mark.name} = {value} instead of {best:g}")
    return problems


def _ends(mark: RewardMark) -> tuple[float, float]:
    """The best and the worst value."""
    low, high = mark.range
    return (high, low) if mark.weight >= 0 else (low, high)


def _steps(session: Session) -> list[float]:
    return [node.reward for node in session.nodes if node.reward is not None]

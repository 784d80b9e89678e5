"""Measuring a policy: held-out tasks, several sessions each, nothing learned. Scripts need neither model nor torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from agentrl.config import EvalConfig
from agentrl.config.policies import SCRIPTS
from agentrl.envs.base import Env
from agentrl.envs.episode import EXPERT, NOOP
from agentrl.envs.turns import Actor
from agentrl.errors import ConfigError, suggest
from agentrl.rollout.episodes.groups import EVAL, Rollouts
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.stream.batch_metrics import Evaluation, evaluate_groups
from agentrl.rollout.stream.health import failures, finding, overlong, sampling_notes, sessions_of, with_retries
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.types import Group, Session, Task


class Progress(Protocol):
    """Displays progress and messages; `agentrl.train.display.console.Display` implements it."""

    def say(self, text: str) -> None:
        """Show a permanent line."""

    def warn(self, text: str) -> None:
        """Show a warning."""

    def warn_once(self, text: str) -> None:
        """Show a warning, unless it was shown before."""

    def part(
        self, name: str, total: int = 0, unit: str = "sessions", detail: Callable[[], str] = str
    ) -> AbstractContextManager[Callable[[object], None]]:
        """Show that the block is running; it calls what is yielded once for each of `total` units done.

        `detail` says something more in a few words, as it is then.
        """


SCRIPTED: dict[str, Actor] = dict(zip(SCRIPTS, (EXPERT, NOOP), strict=True))
"""Policies that need no model."""


def held_out_split(measured: EvalConfig, env: Env) -> str:
    """The split to measure on: the one that the configuration names, or `eval`, or the environment's last.

    Raises:
        ConfigError: the environment has no such split.
    """
    split = measured.split
    if split is None:
        return "eval" if "eval" in env.splits else env.splits[-1]
    if split not in env.splits:
        hint = suggest(split, env.splits)
        name, known = type(env.unwrapped).__name__, ", ".join(env.splits)
        raise ConfigError(f"eval.split={split!r}: {name} has no such split{hint} (splits: {known})")
    return split


def held_out_tasks(measured: EvalConfig, env: Env) -> list[Task]:
    """The tasks that are measured on: `eval.tasks` of the split, or all where there are fewer; whatever the seed is."""
    return TaskStream(env, held_out_split(measured, env), seed=0).once(measured.tasks)


async def play_held_out(
    measured: EvalConfig,
    rollouts: Rollouts,
    who: Actor | Program,
    progress: Progress,
    name: str = "evaluation",
    step: int | None = None,
    ended: Callable[[Session], None] = lambda session: None,
    detail: Callable[[], str] = str,
    tasks: Sequence[Task] | None = None,
) -> tuple[Evaluation, list[Group]]:
    """Play `eval.tasks` tasks, `eval.n` sessions each; the summary, and the sessions themselves.

    Args:
        measured: which tasks, and how often each.
        rollouts: generates the sessions.
        who: writes the evaluated policy's messages.
        progress: displays progress, and warnings about the sessions.
        name: what the display calls this evaluation.
        step: how many of the run's steps are done; None outside a run.
        ended: is called with each session that has ended.
        detail: what the display says beside it.
        tasks: those of `held_out_tasks`, where they are known already.

    Raises:
        InfraError: all of them ended in an infrastructure error.
    """
    env = rollouts.make_env()
    tasks = held_out_tasks(measured, env) if tasks is None else tasks
    if len(tasks) < measured.tasks:
        split = held_out_split(measured, env)
        found = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
        progress.say(f"{name}: {found}, not eval.tasks={measured.tasks}: split {split!r} has no more")

    attempts = itertools.count()

    async def generate() -> list[Group]:
        with progress.part(name, len(tasks) * measured.n, detail=detail) as advance:

            async def report(session: Session) -> None:
                ended(session)
                advance(session)

            size, attempt = measured.n, next(attempts)
            return await rollouts.collect(tasks, who, phase=EVAL, n=size, step=step, attempt=attempt, ended=report)

    groups = await with_retries(generate, name, progress.warn)
    sessions = sessions_of(groups)
    if warning := finding(sessions) or failures(sessions):
        progress.warn(f"{name}: {warning}")
    if long := overlong(sessions):
        progress.warn(f"{name}: {long}")
    for note in sampling_notes(sessions, trained=False):
        progress.warn_once(note)
    return evaluate_groups(groups, measured), groups

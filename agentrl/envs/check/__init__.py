"""`check_env`: does an environment keep its contract? For its author, before a long run finds out.

The contract is a table of rules (`table`): each proves one thing, and is a function that reads tasks, tools and
episodes (`subject`) and yields violations. Whatever an environment raises is a finding too, so that one failure does
not hide the others; and it runs in a process of its own (`child`), supervised by this one (`supervise`), so that
nothing it does can hang or end the check. docs/check.md lists what each rule proves and how to fix a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrl.common.imports import refuse_within_import
from agentrl.envs.base import Env
from agentrl.envs.check.child import CheckJob
from agentrl.envs.check.findings import Finding, Measured, Note, Scores
from agentrl.envs.check.supervise import CheckProgress, supervise
from agentrl.errors import InvalidInput

__all__ = ["LIMIT", "Finding", "Measured", "Note", "CheckProgress", "Scores", "check_env"]

LIMIT = 60.0
"""Seconds that one call of a method may take, unless more are allowed."""
SCORED, SECONDS = 100, 10.0
"""Tasks that the trivial agents play, and the seconds after which they begin no further one."""


def check_env(
    env: Env | str | Callable[..., Env],
    *,
    tasks: int = 3,
    seed: int = 0,
    limit: float = LIMIT,
    hostile: int | None = None,
    scored: int = SCORED,
    seconds: float = SECONDS,
    options: dict[str, Any] | None = None,
    rewards: Mapping[str, Any] | None = None,
    report: Callable[[Finding | CheckProgress | Measured | Note | Scores], None] | None = None,
    **kwargs: Any,
) -> list[Finding]:
    """Find violations of an environment's contract, in a process forked from this one.

    Args:
        env: a name, path/to/file.py:Class, a class, a factory, or an instance of a class without options.
        tasks: how many tasks of each split to run.
        seed: the episodes' seed.
        limit: seconds that one call of a method may take; the whole check may take ten times as long.
        scored: how many tasks the trivial agents and the expert play.
        seconds: they begin no further one after so long.
        hostile: how many episodes of malformed, hostile and huge calls to run; by default a few, within seconds.
        options: the constructor's options, where one of them has the name of an argument here.
        rewards: settings of further rewards by name, as `rewards.*` of a run.
        report: called with each finding and note at once, with the progress every tenth of a second, with the table
            of scores, and with what turns and instances cost. What it raises ends the check.
        kwargs: the constructor's other options.

    Returns:
        The findings; empty where the contract is kept.

    Raises:
        UnknownName: nothing of that name.
        ConfigError: the options, or the settings of a reward, are wrong.
        InvalidInput: a number that is not positive.
    """
    refuse_within_import("agentrl.check_env")
    numbers = {"tasks": tasks, "limit": limit, "hostile": 1 if hostile is None else hostile}
    for name, value in {**numbers, "scored": scored, "seconds": seconds}.items():
        if not value > 0:
            raise InvalidInput(f"{name} = {value!r}: must be positive")
    target = type(env) if isinstance(env, Env) else env
    found = []
    job = CheckJob(target, {**(options or {}), **kwargs}, tasks, seed, limit, rewards or {}, hostile, scored, seconds)
    for event in supervise(job):
        if report is not None:
            report(event)
        if isinstance(event, Finding):
            found.append(event)
    return found

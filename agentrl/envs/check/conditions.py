"""Rules about the circumstances of an episode: another day, another process, no seed, a cut-off first turn."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check import places
from agentrl.envs.check.clock import DAYS, shifted_clock
from agentrl.envs.check.elsewhere import MARK
from agentrl.envs.check.subject import Subject
from agentrl.envs.episode import play, record
from agentrl.errors import AgentRLError, TokenBudgetExceeded
from agentrl.types import Message

OTHER_HASHES = "4049"
"""The seed of string hashes in the other process: an order that follows from them differs there."""
SECONDS = 60.0
"""For that process to list the tasks."""


async def clock(subject: Subject) -> AsyncIterator[str]:
    """An episode is the same on another day."""
    if "not deterministic" in subject.notes:
        return
    for task in subject.tasks:
        today = (await subject.episode(task, subject.default)).session
        if today is None:
            continue
        with shifted_clock(type(subject.env.unwrapped)):
            later = (await subject.play(task, subject.default, 0)).session
        if later is None:
            yield f"task {task.id!r}: the episode fails {DAYS} days from now"
            return
        for place, (one, other) in enumerate(zip(record(today), record(later), strict=False)):
            if one != other:
                words = f"{_cut(one)} today and {_cut(other)} {DAYS} days from now"
                yield f"task {task.id!r}, entry {place}: it depends on the time of day or the date, {words}"
                return


async def other_process(subject: Subject) -> AsyncIterator[str]:
    """Another process gives the same tasks; checked where the environment is given by its name."""
    if subject.name is None:
        return
    listed = {split: [task.model_dump() for task in tasks] for split, (tasks, _) in subject.splits.items()}
    most = max(map(len, listed.values()), default=0)
    try:
        options = json.dumps(subject.options)
    except (TypeError, ValueError):
        return  # options that only this process has
    words = [sys.executable, "-m", "agentrl.envs.check.elsewhere", subject.name, options, str(most)]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = await asyncio.create_subprocess_exec(
        *words,
        env={**os.environ, "PYTHONHASHSEED": OTHER_HASHES, "PYTHONPATH": paths},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        written, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return
    found = [line for line in written.splitlines() if line.startswith(MARK.encode())]
    if process.returncode or not found:
        return  # a name that only this process knows, or a failure that is reported elsewhere
    for split, tasks in json.loads(found[-1].removeprefix(MARK.encode())).items():
        here = json.loads(json.dumps(listed.get(split, []), default=str))
        for index, (one, other) in enumerate(zip(here, tasks, strict=False)):
            if one != other:
                yield f"split {split!r}, index {index}: {_cut(one)} here and {_cut(other)} in another process"
                return


async def unseeded(subject: Subject) -> AsyncIterator[str]:
    """An episode can begin without a seed."""
    env, task = subject.make(), subject.tasks[0]
    subject.label(task, "agent of an episode without a seed")
    try:
        await calls.openings(env, task, seed=None)
    except AgentRLError as error:
        if all(str(error) != str(episode.error) for episode in subject.all_played()):
            yield f"task {task.id!r}: without a seed, {error}{_at(error)}"
    finally:
        await calls.close(env)


async def cut_off(subject: Subject) -> AsyncIterator[str]:
    """A session that is cut off before its first step can be rewarded."""
    task = subject.tasks[0]
    subject.label(task, "agent that is cut off at once")
    try:
        await play(subject.make(), task, _cut_off_at_once, seed=subject.seed)
    except AgentRLError as error:
        if all(str(error) != str(episode.error) for episode in subject.all_played()):
            yield f"task {task.id!r}, cut off in its first turn: {error}{_at(error)}"


def _cut_off_at_once(env: Env, messages: Sequence[Message]) -> Message:
    raise TokenBudgetExceeded("the session's tokens are used up")


def _at(error: AgentRLError) -> str:
    place = places.of_error(error.__cause__ or error)
    return f", at {place}" if place else ""


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:119] + "…"

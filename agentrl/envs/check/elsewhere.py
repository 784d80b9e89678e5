"""`python -m agentrl.envs.check.elsewhere JOB`: an environment's tasks and episodes, as another process has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta, tzinfo
from itertools import islice
from types import ModuleType
from typing import Any

from agentrl.common.plain import plain
from agentrl.envs import calls
from agentrl.envs.base import has_expert
from agentrl.envs.data.samples import random_policy, sampled_policy
from agentrl.envs.episode import ScriptedPolicy, expert_policy, play, record
from agentrl.envs.registry import factory
from agentrl.types import Task

DAYS = 400
"""Days from now: another year, and another day of the week."""
SHIFT = timedelta(days=DAYS, hours=5, minutes=7)


class _Replacement(type):
    """A class in the place of the one that it is derived from; instances are that one's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.__mro__[1](*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


def _as_standard(cls: type, source: Any, handler: Callable[[Any], Any]) -> Any:
    """Pydantic's models take what stands for a class of the standard library as that class."""
    return handler(cls.__mro__[1])


class _Date(date, metaclass=_Replacement):
    __get_pydantic_core_schema__: Any = classmethod(_as_standard)

    @classmethod
    def today(cls) -> Any:
        return (datetime.now() + SHIFT).date()  # date.today() itself asks time.time


class _DateTime(datetime, metaclass=_Replacement):
    __get_pydantic_core_schema__: Any = classmethod(_as_standard)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime.now(tz) + SHIFT

    @classmethod
    def today(cls) -> Any:
        return datetime.today() + SHIFT

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.utcnow() + SHIFT


def _later(clock: Callable[..., Any]) -> Callable[[float | None], Any]:
    """A function of `time` that takes seconds since 1970, or now."""
    now = time.time

    def later(seconds: float | None = None) -> Any:
        return clock(now() + SHIFT.total_seconds() if seconds is None else seconds)

    return later


@contextmanager
def shifted_clock() -> Iterator[None]:
    """Let the clock be `DAYS` days later, also for what environments import meanwhile.

    `time` and `datetime` themselves are changed; the event loop and timeouts use the monotonic clock, which stays.
    """
    seconds, nanoseconds = time.time, time.time_ns
    later: dict[int, Any] = {
        id(date): _Date,
        id(datetime): _DateTime,
        id(seconds): lambda: seconds() + SHIFT.total_seconds(),
        id(nanoseconds): lambda: nanoseconds() + int(SHIFT.total_seconds()) * 10**9,
        **{id(clock): _later(clock) for clock in (time.localtime, time.gmtime, time.ctime)},
    }
    formatted = time.strftime
    modules = [time, sys.modules["datetime"], *_environments()]
    found = [(module, name, value) for module in modules for name, value in vars(module).items() if id(value) in later]
    found.append((time, "strftime", formatted))
    for module, name, value in found:
        setattr(module, name, later.get(id(value), value))
    time.strftime = lambda form, *moment: formatted(form, *(moment or (time.localtime(),)))
    try:
        yield
    finally:
        for module, name, value in found:
            setattr(module, name, value)


def _environments() -> list[ModuleType]:
    """The modules of environments that are loaded already, but not agentrl's own core."""
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and name.startswith("agentrl.envs.")
        and name.count(".") > 2
        and not name.startswith("agentrl.envs.check")
    ]


MARK = "tasks and episodes: "
"""Before them, in a line of their own: an environment's code may print, also as the process ends."""
TURNS = 30
EPISODE_SECONDS = 20.0
"""No further episodes are begun after so long."""


def policies(seed: int, expert: bool) -> dict[str, ScriptedPolicy]:
    """The agents whose episodes are compared, by name; they write the same in every process."""
    own: ScriptedPolicy = expert_policy if expert else sampled_policy
    return {"expert" if expert else "agent of made-up calls": own, "random agent": random_policy(seed)}


def write_value(value: Any) -> str:
    """Write a value as JSON, the same in every process: sets sorted, and what has no form as its text."""
    return json.dumps(value, default=lambda one: str(one) if (found := plain(one)) is one else found)


async def episodes(make: Any, tasks: list[Task], seed: int, seconds: float = EPISODE_SECONDS) -> Iterator[Any]:
    """Each task's id, the agent, and the record of its episode, or why it failed."""
    loop, found = asyncio.get_running_loop(), list[Any]()
    began = loop.time()
    for task in tasks:
        for name, policy in policies(seed, has_expert(make())).items():
            if loop.time() - began > seconds:
                return iter(found)
            try:
                session = await play(make(), task.model_copy(deep=True), policy, seed=seed, max_turns=TURNS)
                found.append((task.id, name, record(session)))
            except Exception as error:
                found.append((task.id, name, [f"{type(error).__name__}: {error}"]))
    return iter(found)


def main(text: str) -> None:
    """Write what was asked for as one line of JSON."""
    job: Mapping[str, Any] = json.loads(text)
    with shifted_clock() if job["date"] else contextlib.nullcontext():
        make = factory(job["name"], **job["options"])
        env = make()
        listed = {split: list(islice(calls.tasks(env, split), job["most"])) for split in env.splits}
        chosen = [task for tasks in listed.values() for task in tasks if task.id in job["played"]]
        found = list(asyncio.run(episodes(make, chosen, job["seed"])))
    tasks = {split: [task.model_dump() for task in each] for split, each in listed.items()}
    print(f"\n{MARK}{write_value({'tasks': tasks, 'episodes': found})}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

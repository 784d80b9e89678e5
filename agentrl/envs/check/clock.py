"""Another day: what code is told that asks for the time or the date, while an episode is played.

`time` and `datetime` themselves are changed before the environment is imported. The event loop and timeouts use the
monotonic clock, which stays.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, tzinfo
from types import ModuleType
from typing import Any

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
    """Let the clock be `DAYS` days later, also for what environments import meanwhile."""
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

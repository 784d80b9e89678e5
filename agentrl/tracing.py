"""Named spans of work, whose seconds are kept with a session's turns (`Node.timings`).

A span costs nothing where nobody asks for it: `span` then returns a shared context manager that does nothing. Who asks
is known by context variables, which tasks inherit from where they were created; so what a tool's task does is still
attributed to the turn that called the tool.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import TracebackType

OFF: AbstractContextManager[None] = nullcontext()
_collected: ContextVar[dict[str, float] | None] = ContextVar("collected", default=None)


@contextmanager
def collected() -> Iterator[dict[str, float]]:
    """The seconds of the spans within the block, by name; spans of one name add up, also where they overlap."""
    seconds: dict[str, float] = {}
    token = _collected.set(seconds)
    try:
        yield seconds
    finally:
        _collected.reset(token)


def span(name: str) -> AbstractContextManager[None]:
    """A named piece of work: the block."""
    seconds = _collected.get()
    return OFF if seconds is None else _Span(name, seconds)


def rounded(seconds: float) -> float:
    """Seconds to the microsecond: what a clock is good for, and short where it is stored."""
    return round(seconds, 6)


class _Span(AbstractContextManager[None]):
    __slots__ = ("_began", "_name", "_seconds")

    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        self._name, self._seconds = name, seconds

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took = self._seconds.get(self._name, 0.0) + time.monotonic() - self._began
        self._seconds[self._name] = rounded(took)

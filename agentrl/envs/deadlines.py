"""A deadline that costs nothing where there is nothing to wait for.

Most environments answer without waiting for anything, and a timer that is set and cancelled would be a seventh of such
a turn. So a coroutine is begun first, and a timer is set where it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; TimeoutError where it was still waiting after so many seconds, and was cancelled."""
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    async with asyncio.timeout(seconds):
        return await _Begun(work, waits_for)


class _Begun(Generator[Any, Any, T]):
    """A coroutine that has begun and waits for something; whoever looks for where a task waits sees the coroutine."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work, self._waits_for = work, [waits_for]

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        return self._waits_for.pop() if self._waits_for else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

"""Coroutines that run side by side and end together, and threads that are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def current_task() -> asyncio.Task[Any]:
    """Return the task that runs; there is one wherever a coroutine does."""
    task = asyncio.current_task()
    assert task is not None
    return task


def cancel_on(*signals: int) -> None:
    """Cancel the task that runs when one of these signals comes; a shell's background job would ignore SIGINT else."""
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, current_task().cancel)


async def concurrently(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all, and return their results in order; where one fails the others are cancelled and awaited."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def take_error(future: asyncio.Future[Any]) -> None:
    """Take the error of a future that nobody may wait for, as its callback; asyncio would print it at some time."""
    if not future.cancelled():
        future.exception()


def hold_task(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Begin a task that `tasks` holds until it has ended: the event loop itself would not."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call it in a thread, like `asyncio.to_thread`; where this is cancelled, the thread is waited for all the same.

    It is for calls that use what the canceller closes next.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        take_error(call)
        raise

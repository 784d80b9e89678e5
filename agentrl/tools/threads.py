"""Run a synchronous function off the event loop, in a daemon thread that is reused.

The standard library's thread pools are bounded and join their threads at exit: a tool that never returns would
first block the others and then hang the process. Here a stuck thread blocks nothing else: idle threads are kept
for the next call, a new one is started when none is idle, and none is ever joined.

A forked child has none of its parent's threads, so it starts without idle ones, and with a new lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from agentrl.common.foreign_errors import words
from agentrl.tools import effects

T = TypeVar("T")
MAX_IDLE = 32
"""Threads kept for the next call; more come and go."""

_idle: list[_Worker] = []
_lock = threading.Lock()


def in_forked_child(reset: Callable[[], None]) -> None:
    """Have every forked child of this process call `reset` first, where processes can fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


@in_forked_child
def _forget_threads() -> None:
    global _lock
    _idle.clear()
    _lock = threading.Lock()


class _Worker(threading.Thread):
    """A daemon thread that runs one job after another."""

    def __init__(self) -> None:
        super().__init__(name="agentrl-tool", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            self.jobs.get()()
            with _lock:
                if len(_idle) >= MAX_IDLE:
                    return
                _idle.append(self)


def loop_is_running() -> bool:
    """Return whether this thread runs an event loop; a function, so that no later error has this one as its context."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def run_in_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call `function` in a thread and await its result; cancelling stops the wait, not the thread.

    The call that it is a part of (`effects`) knows of the thread until it ends.
    """
    return await run_by(start, function, *args, **kwargs)


async def run_by(
    begin: Callable[[Callable[[], None]], None], function: Callable[..., T], /, *args: Any, **kwargs: Any
) -> T:
    """Call `function` in the caller's own thread: `begin` gives it work that raises nothing, and waits for nothing."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    job = partial(contextvars.copy_context().run, function, *args, **kwargs)
    call = effects.current()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = job()
        except (StopIteration, KeyboardInterrupt, GeneratorExit) as stop:  # mean nothing beyond the thread
            error = RuntimeError(words(stop))
            error.__cause__ = stop
        except BaseException as raised:
            error = raised
        if call is not None:
            call.thread_ends()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    if call is not None:
        call.thread_begins()
    begin(work)
    return await future


def start(work: Callable[[], None]) -> None:
    """Have a thread do something that raises nothing, and wait for nothing."""
    with _lock:
        worker = _idle.pop() if _idle else None
    (worker or _Worker()).jobs.put(work)

"""One background event loop for every sandbox of the process.

Sandboxes outlive event loops (a pool is filled before a run's loop exists; tests have one loop each), and some
callers have none (a synchronous tool). So their sockets belong to a loop of their own, in one daemon thread that is
started at first use, and all callers submit coroutines to it. It costs two thread switches a call, about 0.1 ms.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from agentrl.tools.threads import in_forked_child

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


@in_forked_child
def _forget_loop() -> None:
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


def sandbox_loop() -> asyncio.AbstractEventLoop:
    """The loop; a forked child gets its own."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="agentrl-sandboxes", daemon=True).start()
        return _loop


def stop() -> None:
    """Stop the loop for good: no task on it goes on. For a process that ends."""
    if _loop is not None and not _loop.is_closed():
        _loop.call_soon_threadsafe(_loop.stop)


async def on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and await its result; a cancellation is passed on."""
    loop = sandbox_loop()
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def run_on_loop(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a coroutine function: what it does is done on the loop, from whichever one it is called."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await on_loop(function(*args, **kwargs))

    return call


def blocking(work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine on the loop from synchronous code (never from the loop's own thread)."""
    return asyncio.run_coroutine_threadsafe(work, sandbox_loop()).result(timeout)

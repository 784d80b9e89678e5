"""Calling what an author wrote, plain or async, so that a plain method that blocks holds up nobody else.

A plain method runs in a thread, and whoever waits for it stops waiting at its deadline. It is one thread for all of
them, and they run one after another, as on an event loop: many are written for that (a connection of `sqlite3`, which
only its own thread may use, a cache that is filled at the first call, the global random generator). Where one takes
longer than `PATIENCE`, that thread is left to it, and another one goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl.common.foreign_errors import words
from agentrl.envs.attribution import watch
from agentrl.envs.base import Env
from agentrl.envs.state import resolve
from agentrl.errors import EnvError
from agentrl.tools.threads import in_forked_child, run_by
from agentrl.types import Session

PATIENCE = 5.0
"""Seconds after which a plain method's call is left alone, and the next ones run in another thread."""


_for_main_thread: set[Callable[..., Any]] = set()
"""Plain rewards that use signals (Math-Verify's limits do): they are computed on the event loop."""


class NeedsMainThread(EnvError):
    """A plain method used signals, which only the main thread can."""


class _Line:
    """The one thread in which plain methods run, in the order in which they were called, until one takes too long."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._since: float | None = None

    def begin(self, job: Callable[[], None]) -> None:
        """Have it run after those that were called before."""
        with self._lock:
            if self._thread is None:
                self._start()
        self._jobs.put(job)

    def relieve(self) -> None:
        """Let another thread go on where the call under way has taken longer than `PATIENCE`."""
        with self._lock:
            if self._since is not None and time.monotonic() - self._since >= PATIENCE:
                self._start()

    def _start(self) -> None:
        self._since = None
        self._thread = threading.Thread(target=self._run, name="agentrl-environments", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            self._since = time.monotonic()
            job()
            with self._lock:
                if self._thread is not threading.current_thread():
                    return
                self._since = None


_line = _Line()


@in_forked_child
def _forget_thread() -> None:
    global _line
    _line = _Line()


async def call_method(env: Env, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of an environment; a plain one that an author wrote runs in a thread.

    Cancelling stops the wait, not the thread, whose effects no longer count then. Under `attribution.watch` all of
    them run on the event loop, where what they do is measured.
    """
    if not _may_block(method) or watch.get() is not None:
        return await resolve(method(*args, **kwargs))
    with env.tools.effects.call(f"{type(env.unwrapped).__name__}.{method.__name__}"):
        try:
            value = await _in_line(partial(method, *args, **kwargs))
        except ValueError as error:
            if "signal only works in main thread" not in words(error.__cause__ or error):
                raise
            where = f"{type(env.unwrapped).__name__}.{method.__name__}"
            raise NeedsMainThread(
                f"{where} uses signals, which plain methods' thread can't: write it as async"
            ) from error
    return await resolve(value)


async def compute_reward(env: Env, method: Callable[..., Any], session: Session) -> Any:
    """Call a reward's method; what a plain one notes in the session counts where it ends in time.

    One that needs the main thread is computed once more on the event loop: it has changed nothing that counts.
    """
    if not _may_block(method) or getattr(method, "__func__", method) in _for_main_thread:
        return await resolve(method(session))
    try:
        return await with_own_notes(session, partial(call_method, env, method))
    except NeedsMainThread:  # as Math-Verify does
        _for_main_thread.add(getattr(method, "__func__", method))
        return await resolve(method(session))


async def with_own_notes(session: Session, compute: Callable[[Session], Awaitable[Any]]) -> Any:
    """Call `compute` with the session and notes of its own, which become the session's when it has ended."""
    own = replace(session, info=dict(session.info), counters=session.counters.copy())
    value = await compute(own)
    session.info, session.counters = own.info, own.counters
    return value


def _may_block(method: Callable[..., Any]) -> bool:
    owner = getattr(method, "__self__", None)
    if isinstance(owner, Env) and vars(type(owner)).get("quick", False):
        return False
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(type(method).__call__):
        return False
    return getattr(method, "__func__", method) is not getattr(Env, method.__name__, None)


async def _in_line(function: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(PATIENCE, lambda: look())

    def look() -> None:
        nonlocal timer
        _line.relieve()
        timer = loop.call_later(PATIENCE, look)

    try:
        return await run_by(_line.begin, function)
    finally:
        timer.cancel()

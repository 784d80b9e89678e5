"""Calling what an author wrote, plain or async, so that a plain method that blocks holds up nobody else.

A plain method runs in a thread, as plain tools do, and whoever waits for it stops waiting at its deadline. One runs at
a time, as on an event loop: many are written for that (a cache that is filled at the first call, the global random
generator). Whichever takes longer than `PATIENCE` no longer holds up the others.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl.envs.attribution import watch
from agentrl.envs.base import Env
from agentrl.envs.state import resolved
from agentrl.tools.threads import in_forked_child, run_in_thread
from agentrl.types import Session

PATIENCE = 5.0
"""Seconds after which a plain method's call is left alone, and others begin beside it."""


class _Turn:
    """What the one call has that others wait for; `since` is when it began."""

    def __init__(self) -> None:
        self.lock, self.since = threading.Lock(), time.monotonic()


_turn = _Turn()
_exchange = threading.Lock()


@in_forked_child
def _forget_calls() -> None:
    global _turn, _exchange
    _turn, _exchange = _Turn(), threading.Lock()


async def answered(env: Env, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a method of an environment gives; a plain one that an author wrote runs in a thread.

    Cancelling stops the wait, not the thread, whose effects no longer count then. Under `attribution.watch` all of
    them run on the event loop, where what they do is measured.

    Args:
        env: the environment, perhaps wrapped.
        method: of the environment; what it gives may be awaitable.
        args: the method's.
        kwargs: the method's.
    """
    if not _may_block(method) or watch.get() is not None:
        return await resolved(method(*args, **kwargs))
    with env.tools.effects.call(f"{type(env.unwrapped).__name__}.{method.__name__}"):
        value = await run_in_thread(_alone, partial(method, *args, **kwargs))
    return await resolved(value)


async def scored(env: Env, method: Callable[..., Any], session: Session) -> Any:
    """What a reward's method gives; what a plain one notes in the session counts where it ends in time."""
    if not _may_block(method):
        return await resolved(method(session))
    return await with_own_notes(session, partial(answered, env, method))


async def with_own_notes(session: Session, compute: Callable[[Session], Awaitable[Any]]) -> Any:
    """Call `compute` with the session and notes of its own, which become the session's when it has ended."""
    own = replace(session, info=dict(session.info), counters=session.counters.copy())
    value = await compute(own)
    session.info, session.counters = own.info, own.counters
    return value


def _may_block(method: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(type(method).__call__):
        return False
    return getattr(method, "__func__", method) is not getattr(Env, method.__name__, None)


def _alone(function: Callable[[], Any]) -> Any:
    """Call it when no other call is under way that began less than `PATIENCE` ago."""
    turn = _turn
    while not turn.lock.acquire(timeout=PATIENCE):
        turn = _after(turn)
    turn.since = time.monotonic()
    try:
        return function()
    finally:
        turn.lock.release()


def _after(turn: _Turn) -> _Turn:
    """What to wait for after `turn`: another one where its call takes too long."""
    global _turn
    with _exchange:
        if turn is _turn and time.monotonic() - turn.since >= PATIENCE:
            _turn = _Turn()
        return _turn

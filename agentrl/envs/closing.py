"""Closing what an author wrote, which may wait, or block, for ever."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from agentrl.common.concurrency import take_error
from agentrl.common.foreign_errors import words
from agentrl.envs.state import resolve
from agentrl.errors import DeadlineExceeded
from agentrl.tools.threads import run_in_thread

CLOSE_SECONDS = 60.0
"""Seconds that each part of an episode (the environment, its sandbox, added tools) may take to close."""


async def close_in_time(what: Any) -> None:
    """Close something; a coroutine that has not ended in time is cancelled, and neither it nor a thread is awaited.

    Args:
        what: has a method `close`; a plain one runs in a thread of its own, so that it may block.

    Raises:
        DeadlineExceeded: it has not ended in time.
    """
    task = asyncio.ensure_future(_close(what))
    try:
        done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(take_error)
    if not done:
        raise DeadlineExceeded(f"{type(what).__name__}.close() has not ended after {CLOSE_SECONDS:g} s")
    task.result()


async def _close(what: Any) -> None:
    try:
        if inspect.iscoroutinefunction(what.close):
            await what.close()
        else:
            await resolve(await run_in_thread(what.close))
    except SystemExit as error:  # would end the event loop from this task of its own
        raise RuntimeError(words(error)) from error

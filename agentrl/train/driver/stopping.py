"""A run that is asked to stop cancels what it waits for, and never loses work that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.errors import AgentRLError

T = TypeVar("T")


class Stopped(AgentRLError):
    """The run was asked to stop, and has saved a checkpoint."""


async def run_unless_stopped(stop_requested: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The work's result.

    Raises:
        Stopped: `stop_requested` is set already, and the work does not begin; or it is set before the work is done,
            which is cancelled then. Work that is done is never lost.
    """
    if stop_requested.is_set():
        work.close()
        raise Stopped("the run was asked to stop")
    doing, waiting = asyncio.create_task(work), asyncio.create_task(stop_requested.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Stopped("the run was asked to stop")
        return await doing
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)

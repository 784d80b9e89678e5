"""Ending the loop between two steps."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.train.driver.interrupt import Stopped, run_unless_stopped


async def test_work_does_not_begin_once_the_run_was_asked_to_stop() -> None:
    """An asynchronous run whose next batch always waited for it already went on to its last step."""
    stop, begun = asyncio.Event(), list[str]()
    stop.set()

    async def at_once() -> None:
        begun.append("work")

    with pytest.raises(Stopped):
        await run_unless_stopped(stop, at_once())
    assert not begun


@pytest.mark.slow
async def test_work_that_ends_while_the_run_is_asked_to_stop_is_kept_and_other_work_is_cancelled() -> None:
    stop, cancelled = asyncio.Event(), asyncio.Event()

    async def with_the_signal() -> str:
        stop.set()
        return "a batch"

    assert await run_unless_stopped(stop, with_the_signal()) == "a batch"
    stop.clear()

    async def endless() -> None:
        try:
            asyncio.get_running_loop().call_soon(stop.set)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(Stopped):
        await run_unless_stopped(stop, endless())
    assert cancelled.is_set()

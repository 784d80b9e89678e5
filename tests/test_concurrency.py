"""Threads that are waited for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentrl.common.concurrency import in_thread


async def test_a_cancelled_call_ends_when_its_thread_has() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(60)
        ended.set()
        raise ValueError("after the cancellation, and told to nobody")

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.slow
async def test_results_and_errors_are_those_of_the_call() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)

"""A coroutine within a deadline behaves as one that is awaited, whatever it does, and is cancelled where it is late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.check import places
from agentrl.envs.results import within
from agentrl.watchdog import stacks

STEP = st.sampled_from(["sleep", "future", "failed", "caught", "timeout", "gather", "raise", "cancelled", "stop"])


async def work(steps: list[str]) -> list[Any]:
    """Do each of the steps; the last words say how far it came."""
    done: list[Any] = []
    loop = asyncio.get_running_loop()
    for step in steps:
        done.append(step)
        if step == "sleep":
            await asyncio.sleep(0)
        elif step in ("future", "failed", "caught"):
            future = loop.create_future()
            loop.call_soon(*((future.set_result, 7) if step == "future" else (future.set_exception, KeyError(7))))
            try:
                done.append(await future)
            except KeyError:
                if step == "failed":
                    raise
        elif step == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(60)
        elif step == "gather":
            done.append(await asyncio.gather(*(asyncio.sleep(0, n) for n in range(3))))
        elif step == "raise":
            raise ValueError(len(done))
        elif step == "cancelled":
            raise asyncio.CancelledError
        else:
            raise StopIteration(1)
    return done


async def outcome(awaited: Any) -> Any:
    try:
        return await awaited
    except (Exception, asyncio.CancelledError) as error:
        return type(error), str(error)


@given(st.lists(STEP, max_size=5))
@pytest.mark.slow
def test_a_coroutine_within_a_deadline_ends_as_it_does_without_one(steps: list[str]) -> None:
    async def both() -> tuple[Any, Any]:
        return await outcome(work(list(steps))), await outcome(within(60, work(list(steps))))

    alone, bounded = asyncio.run(both())
    assert bounded == alone


@pytest.mark.parametrize("before", [[], ["sleep"], ["future", "timeout"]])
def test_one_that_waits_past_its_deadline_is_cancelled(before: list[str]) -> None:
    ended: list[str] = []

    async def late() -> None:
        try:
            await work(before)  # where a busy machine may be late already
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await within(0.01, late())

    asyncio.run(run())
    assert ended == ["cancelled"]


def test_cancelling_the_task_cancels_what_it_waits_for() -> None:
    ended: list[str] = []

    async def waiting() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def run() -> None:
        task = asyncio.create_task(within(60, waiting()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert ended == ["cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("before", [[], ["sleep", "future"]])
def test_where_a_task_waits_is_seen_through_a_deadline(before: list[str]) -> None:
    async def inner() -> None:
        await work(before)
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    async def run() -> tuple[str, str]:
        task = asyncio.create_task(within(60, outer()), name="late")
        for _ in range(9):
            await asyncio.sleep(0)
        told = places.of_waiting(task), stacks(asyncio.get_running_loop())
        task.cancel()
        return told

    place, text = asyncio.run(run())
    assert place.endswith("in inner")
    text = text.partition("task late ")[2]
    assert text.index("in within") < text.index("outer\n") < text.index("inner\n") < text.index("Event.wait\n")

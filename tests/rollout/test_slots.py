"""The limit on concurrent sessions: the oldest group goes first."""

from __future__ import annotations

import asyncio
import time

from agentrl.rollout.stream.slots import Slots


async def test_of_those_that_wait_the_oldest_group_goes_first_and_of_equals_whichever_came_first() -> None:
    slots, order = Slots(1), list[str]()

    async def session(name: str, group: int) -> None:
        async with slots.slot(group) as got:
            assert got
            order.append(name)
            assert slots.under_way == 1
            await asyncio.sleep(0)

    names = (("first", 9), ("b", 4), ("c", 4), ("d", 2), ("e", 7))
    await asyncio.gather(*(session(name, group) for name, group in names))
    assert order == ["first", "d", "b", "c", "e"]
    assert (slots.under_way, slots.waiting, slots.oldest()) == (0, 0, 0.0)


async def test_a_session_that_is_cancelled_while_it_waits_or_as_it_is_given_a_slot_loses_none() -> None:
    slots, begun = Slots(1), list[int]()

    async def session(number: int) -> None:
        async with slots.slot(number):
            begun.append(number)

    async with slots.slot(0):
        waiting = [asyncio.create_task(session(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        assert slots.waiting == 3
        waiting[1].cancel()
    waiting[0].cancel()  # it has been given the slot, and does not know yet
    await asyncio.gather(*waiting, return_exceptions=True)
    assert begun == [3]
    assert (slots.under_way, slots.waiting) == (0, 0)


async def test_waiting_ends_at_the_deadline_and_the_next_one_gets_the_slot() -> None:
    slots = Slots(1)
    async with slots.slot(0):
        async with slots.slot(1, time.monotonic() + 0.01) as got:
            assert not got
        async with slots.slot(1, time.monotonic() - 1) as got:
            assert not got
        assert slots.oldest() > 0
    async with slots.slot(1) as got:
        assert got

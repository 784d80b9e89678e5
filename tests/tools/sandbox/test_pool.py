"""The pool, on sandboxes that are made of nothing: what it promises does not depend on what a sandbox is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox import DaemonError, SandboxDied, SandboxSpec
from agentrl.tools.sandbox.pool import Pool

SPEC = SandboxSpec()
OTHER = SandboxSpec(image="other")


class Fake:
    """A sandbox that is healthy until told otherwise."""

    def __init__(self, house: House, spec: SandboxSpec) -> None:
        self.id = f"fake-{next(house.numbers)}"
        self.spec = spec
        self.house = house
        self.well = True
        self.resets = 0

    async def healthy(self) -> bool:
        return self.well

    async def reset(self) -> None:
        self.resets += 1
        if not self.well:
            raise SandboxError("can't")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.house.alive.discard(self)


class House:
    """Makes fakes, and knows which of them are alive."""

    def __init__(self, delay: float = 0.0) -> None:
        self.numbers = itertools.count()
        self.alive: set[Fake] = set()
        self.making = self.most_making = self.most_alive = self.made = 0
        self.failures: list[Exception] = []
        self.delay = delay

    async def create(self, spec: SandboxSpec) -> Any:
        self.making += 1
        self.most_making = max(self.most_making, self.making)
        try:
            await asyncio.sleep(self.delay)
            if self.failures:
                raise self.failures.pop(0)
            fake = Fake(self, spec)
            self.made += 1
            self.alive.add(fake)
            self.most_alive = max(self.most_alive, len(self.alive))
            return fake
        finally:
            self.making -= 1


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what happens in the background, however busy the machine is."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(what)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr("agentrl.tools.sandbox.pool.BACKOFF", (0.001, 0.002, 0.004))
    return House()


@pytest.fixture
async def pool(house: House) -> AsyncIterator[Pool]:
    pool = Pool(house.create, total=4, creates=2)
    yield pool
    await pool.close()
    assert house.alive == set()


async def test_what_was_prepared_is_handed_out_without_making_one(pool: Pool, house: House) -> None:
    await pool.warm(SPEC, 2)
    first = await pool.acquire(SPEC)
    assert first.id in ("fake-0", "fake-1")
    await pool.release(first)


async def test_an_unhealthy_sandbox_is_never_handed_out(pool: Pool, house: House) -> None:
    await pool.warm(SPEC, 2)
    for fake in house.alive:
        fake.well = False
    lucky: Any = await pool.acquire(SPEC)
    assert lucky.well
    assert pool.counts["unhealthy"] >= 1


async def test_the_bounds_hold_however_many_ask(pool: Pool, house: House) -> None:
    house.delay = 0.002

    async def use() -> None:
        async with pool.lease(SPEC):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(use() for _ in range(40)))
    assert house.made == 40, "each had a fresh one"
    assert house.most_alive <= 4
    assert house.most_making <= 2


async def test_a_shelf_of_another_kind_gives_way_to_whoever_waits(pool: Pool, house: House) -> None:
    await pool.warm(OTHER, 4)
    sandbox: Any = await pool.acquire(SPEC, timeout=5)
    assert sandbox.spec == SPEC


async def test_waiting_ends_at_the_deadline_and_leaves_nothing_behind(pool: Pool, house: House) -> None:
    held = [await pool.acquire(SPEC) for _ in range(4)]
    with pytest.raises(DeadlineExceeded, match="4 alive"):
        await pool.acquire(SPEC, timeout=0.05)
    for sandbox in held:
        await pool.release(sandbox)
    assert (await pool.acquire(SPEC, timeout=5)).id not in {sandbox.id for sandbox in held}


async def test_a_daemon_that_fails_for_a_while_is_tried_again(pool: Pool, house: House) -> None:
    house.failures = [DaemonError("busy"), SandboxDied("gone")]
    await pool.acquire(SPEC, timeout=5)
    assert pool.counts["created"] == 1


async def test_a_daemon_that_is_restarted_costs_a_wait_and_no_failure(
    pool: Pool, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the daemon was seen to take 10.6 s; the shortest wait that chance may draw must be longer."""
    monkeypatch.undo()
    house.failures = [DaemonError("not there")]
    clock, sleep = 0.0, asyncio.sleep

    async def passes(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        if clock < 10.6 and seconds:
            house.failures = [DaemonError("not there")]
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", passes)
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    await pool.acquire(SPEC)
    assert clock >= 10.6


async def test_a_daemon_that_keeps_failing_is_told_to_whoever_waits(pool: Pool, house: House) -> None:
    house.failures = [DaemonError(f"failure {i}") for i in range(20)]
    with pytest.raises(DaemonError, match="failure"):
        await pool.acquire(SPEC, timeout=5)


async def test_a_shelf_that_could_not_be_filled_is_filled_again_once_somebody_got_one(pool: Pool, house: House) -> None:
    house.failures = [DaemonError("down")] * 20
    with pytest.raises(DaemonError, match="down"):
        await pool.warm(SPEC, 2, timeout=5)
    house.failures.clear()
    await pool.acquire(SPEC, timeout=5)
    await until(lambda: len(house.alive) == 3, "one leased, two on the shelf")


async def test_a_wrong_configuration_is_not_tried_twice(pool: Pool, house: House) -> None:
    house.failures = [ConfigError("no such image")] * 2
    with pytest.raises(ConfigError, match="no such image"):
        await pool.acquire(SPEC, timeout=5)
    assert len(house.failures) == 1


async def test_recycled_sandboxes_are_emptied_first_and_thrown_away_where_they_can_not_be(house: House) -> None:
    pool = Pool(house.create, total=2, recycle=True)
    first: Any = await pool.acquire(SPEC)
    await pool.release(first)
    await until(lambda: first.resets == 1, "it is emptied")
    await asyncio.sleep(0.05)  # and laid on the shelf
    again: Any = await pool.acquire(SPEC)
    assert again is first
    assert first.resets == 1
    first.well = False
    await pool.release(first)
    assert await pool.acquire(SPEC, timeout=5) is not first
    await pool.close()
    assert house.alive == set()


async def test_work_that_lost_its_sandbox_is_done_again_in_a_fresh_one(pool: Pool, house: House) -> None:
    seen = []

    async def work(sandbox: Any) -> str:
        seen.append(sandbox.id)
        if len(seen) < 3:
            raise SandboxDied("it went away")
        return "done"

    assert await pool.run(SPEC, work) == "done"
    assert len(set(seen)) == 3


async def test_work_that_fails_by_itself_is_not_done_again(pool: Pool) -> None:
    calls = 0

    async def work(sandbox: Any) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await pool.run(SPEC, work)
    assert calls == 1


async def test_one_who_gave_up_waiting_takes_no_sandbox_with_them(pool: Pool, house: House) -> None:
    house.delay = 0.05
    tasks = [asyncio.ensure_future(pool.acquire(SPEC)) for _ in range(4)]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: not house.making and not house.alive, "nobody asked for a shelf")
    assert await pool.acquire(SPEC, timeout=5)


async def test_a_closed_pool_hands_out_nothing(house: House) -> None:
    pool = Pool(house.create)
    held: Any = await pool.acquire(SPEC)
    await pool.close()
    assert held not in house.alive
    with pytest.raises(SandboxError, match="closed"):
        await pool.acquire(SPEC)
    await pool.close()


async def test_who_waits_gets_the_place_of_another_kind_that_was_still_being_made() -> None:
    house = House(delay=0.05)
    pool = Pool(house.create, total=1, creates=1)
    await pool.prepare(OTHER, 1)
    held = await pool.acquire(SPEC, timeout=5)
    assert held.spec == SPEC
    await pool.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("apru"), st.integers(0, 3)), max_size=25), st.booleans())
def test_no_order_of_events_breaks_the_bound_or_loses_a_sandbox(events: list[tuple[str, int]], recycle: bool) -> None:
    async def play() -> None:
        house = House()
        pool = Pool(house.create, total=3, creates=2, recycle=recycle)
        held: list[Any] = []
        specs = [SPEC, OTHER]
        for event, number in events:
            if event == "a" and len(held) < 3:
                held.append(await pool.acquire(specs[number % 2], timeout=5))
            elif event == "p":
                await pool.prepare(specs[number % 2], number)
            elif event == "r" and held:
                await pool.release(held.pop(number % len(held)))
            elif event == "u" and held:
                held[number % len(held)].well = False
            assert all(sandbox in house.alive for sandbox in held)
        assert house.most_alive <= 3
        await pool.close()
        assert house.alive == set()

    asyncio.run(play())

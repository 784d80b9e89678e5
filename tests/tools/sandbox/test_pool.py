"""The pool with a fake backend: its behaviour does not depend on the backend."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.common import retries
from agentrl.errors import ConfigError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox.base import DaemonError, SandboxDied
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.runner.loop import sandbox_loop
from agentrl.tools.sandbox.spec import SandboxSpec

SPEC = SandboxSpec()
OTHER = SandboxSpec(image="other")


class Fake:
    """A sandbox whose health a test sets."""

    def __init__(self, backend: FakeBackend, spec: SandboxSpec) -> None:
        self.id = f"fake-{next(backend.numbers)}"
        self.spec = spec
        self.backend = backend
        self.works = True
        self.resets = 0

    async def healthy(self) -> bool:
        return self.works

    def renewed(self) -> Fake:
        return self

    async def reset(self) -> None:
        self.resets += 1
        if not self.works:
            raise SandboxError("can't")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.backend.alive.discard(self)


class FakeBackend:
    """Creates fakes, and records which of them are alive."""

    def __init__(self, delay: float = 0.0) -> None:
        self.numbers = itertools.count()
        self.alive: set[Fake] = set()
        self.creating = self.most_creating = self.most_alive = self.made = 0
        self.failures: list[Exception] = []
        self.delay = delay
        self.may_create = asyncio.Event()
        self.may_create.set()

    async def create(self, spec: SandboxSpec) -> Any:
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        try:
            await asyncio.sleep(self.delay)
            await self.may_create.wait()
            if self.failures:
                raise self.failures.pop(0)
            fake = Fake(self, spec)
            self.made += 1
            self.alive.add(fake)
            self.most_alive = max(self.most_alive, len(self.alive))
            return fake
        finally:
            self.creating -= 1


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what happens in the background, however busy the machine is."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(what)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


def hasty(backend: FakeBackend, **options: Any) -> SandboxPool:
    """A pool that tries again at once."""
    return SandboxPool(backend.create, backoff=(0.001, 0.002, 0.004), **options)


@pytest.fixture
async def pool(backend: FakeBackend) -> AsyncIterator[SandboxPool]:
    pool = hasty(backend, total=4, creates=2)
    yield pool
    await pool.close()
    assert backend.alive == set()


async def test_an_idle_sandbox_is_acquired_without_creating_one(pool: SandboxPool, backend: FakeBackend) -> None:
    await pool.warm(SPEC, 2)
    first = await pool.acquire(SPEC)
    assert first.id in ("fake-0", "fake-1")
    await pool.release(first)


async def test_an_unhealthy_sandbox_is_never_acquired(pool: SandboxPool, backend: FakeBackend) -> None:
    await pool.warm(SPEC, 2)
    for fake in backend.alive:
        fake.works = False
    acquired: Any = await pool.acquire(SPEC)
    assert acquired.works
    assert pool.counts["unhealthy"] >= 1


async def test_the_bounds_hold_with_any_number_of_callers(pool: SandboxPool, backend: FakeBackend) -> None:
    backend.delay = 0.002

    async def use() -> None:
        async with pool.lease(SPEC):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(use() for _ in range(40)))
    assert backend.made == 40, "each had a fresh one"
    assert backend.most_alive <= 4
    assert backend.most_creating <= 2


async def test_an_idle_sandbox_of_another_kind_is_removed_for_a_waiting_caller(
    pool: SandboxPool, backend: FakeBackend
) -> None:
    await pool.warm(OTHER, 4)
    sandbox: Any = await pool.acquire(SPEC, timeout=60)
    assert sandbox.spec == SPEC


async def test_waiting_ends_at_the_deadline_and_leaves_nothing_behind(pool: SandboxPool, backend: FakeBackend) -> None:
    held = [await pool.acquire(SPEC) for _ in range(4)]
    with pytest.raises(DeadlineExceeded, match="4 alive"):
        await pool.acquire(SPEC, timeout=0.05)
    for sandbox in held:
        await pool.release(sandbox)
    assert (await pool.acquire(SPEC, timeout=60)).id not in {sandbox.id for sandbox in held}


async def test_a_daemon_that_fails_for_a_while_is_tried_again(pool: SandboxPool, backend: FakeBackend) -> None:
    backend.failures = [DaemonError("busy"), SandboxDied("gone")]
    await pool.acquire(SPEC, timeout=60)
    assert pool.counts["created"] == 1


async def test_a_daemon_that_is_restarted_costs_a_wait_and_no_failure(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the daemon was seen to take 10.6 s; the shortest wait that chance may draw must be longer."""
    pool = SandboxPool(backend.create)
    backend.failures = [DaemonError("not there")]
    clock = 0.0

    async def passes(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        if clock < 10.6:
            backend.failures = [DaemonError("not there")]

    monkeypatch.setattr(retries, "asyncio", SimpleNamespace(sleep=passes))  # the loop has other work, which sleeps
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    await pool.acquire(SPEC)
    assert clock >= 10.6
    monkeypatch.undo()
    await pool.close()


async def test_a_daemon_that_keeps_failing_raises_in_the_waiting_caller(
    pool: SandboxPool, backend: FakeBackend
) -> None:
    backend.failures = [DaemonError(f"failure {i}") for i in range(20)]
    with pytest.raises(DaemonError, match="failure"):
        await pool.acquire(SPEC, timeout=60)


async def test_idle_sandboxes_that_could_not_be_created_are_created_after_the_next_acquire(
    pool: SandboxPool, backend: FakeBackend
) -> None:
    backend.failures = [DaemonError("down")] * 20
    with pytest.raises(DaemonError, match="down"):
        await pool.warm(SPEC, 2, timeout=60)
    backend.failures.clear()
    await pool.acquire(SPEC, timeout=60)
    await until(lambda: len(backend.alive) == 3, "one leased, two idle")


async def test_a_wrong_configuration_is_not_tried_twice(pool: SandboxPool, backend: FakeBackend) -> None:
    backend.failures = [ConfigError("no such image")] * 2
    with pytest.raises(ConfigError, match="no such image"):
        await pool.acquire(SPEC, timeout=60)
    assert len(backend.failures) == 1


async def test_recycled_sandboxes_are_emptied_first_and_removed_where_they_can_not_be(backend: FakeBackend) -> None:
    pool = hasty(backend, total=2, recycle=True)
    first: Any = await pool.acquire(SPEC)
    await pool.release(first)
    await until(lambda: pool.counts["reused"] == 1, "it is emptied, and idle again")
    again: Any = await pool.acquire(SPEC)
    assert again is first
    assert first.resets == 1
    first.works = False
    await pool.release(first)
    assert await pool.acquire(SPEC, timeout=60) is not first
    await pool.close()
    assert backend.alive == set()


async def test_work_that_lost_its_sandbox_is_done_again_in_a_fresh_one(pool: SandboxPool, backend: FakeBackend) -> None:
    seen = []

    async def work(sandbox: Any) -> str:
        seen.append(sandbox.id)
        if len(seen) < 3:
            raise SandboxDied("it went away")
        return "done"

    assert await pool.run(SPEC, work) == "done"
    assert len(set(seen)) == 3


async def test_work_that_fails_by_itself_is_not_done_again(pool: SandboxPool) -> None:
    calls = 0

    async def work(sandbox: Any) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await pool.run(SPEC, work)
    assert calls == 1


@pytest.mark.slow
async def test_a_cancelled_acquire_keeps_no_sandbox(pool: SandboxPool, backend: FakeBackend) -> None:
    backend.may_create.clear()
    tasks = [asyncio.ensure_future(pool.acquire(SPEC)) for _ in range(4)]
    await until(lambda: backend.creating > 0, "none was created")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sandbox_loop().call_soon_threadsafe(backend.may_create.set)  # who waits for it is on that loop
    await until(lambda: not backend.creating and not backend.alive, "no idle sandboxes were requested")
    assert await pool.acquire(SPEC, timeout=60)


async def test_a_closed_pool_has_no_sandboxes(backend: FakeBackend) -> None:
    pool = hasty(backend)
    held: Any = await pool.acquire(SPEC)
    await pool.close()
    assert held not in backend.alive
    with pytest.raises(SandboxError, match="closed"):
        await pool.acquire(SPEC)
    await pool.close()


async def test_a_waiting_caller_gets_the_slot_of_another_kind_that_was_still_being_created() -> None:
    backend = FakeBackend(delay=0.05)
    pool = hasty(backend, total=1, creates=1)
    await pool.prepare(OTHER, 1)
    held = await pool.acquire(SPEC, timeout=60)
    assert held.spec == SPEC
    await pool.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("apru"), st.integers(0, 3)), max_size=25), st.booleans())
def test_no_order_of_events_breaks_the_bound_or_loses_a_sandbox(events: list[tuple[str, int]], recycle: bool) -> None:
    async def run() -> None:
        backend = FakeBackend()
        pool = hasty(backend, total=3, creates=2, recycle=recycle)
        held: list[Any] = []
        specs = [SPEC, OTHER]
        for event, number in events:
            if event == "a" and len(held) < 3:
                held.append(await pool.acquire(specs[number % 2], timeout=60))
            elif event == "p":
                await pool.prepare(specs[number % 2], number)
            elif event == "r" and held:
                await pool.release(held.pop(number % len(held)))
            elif event == "u" and held:
                held[number % len(held)].works = False
            assert all(sandbox in backend.alive for sandbox in held)
        assert backend.most_alive <= 3
        await pool.close()
        assert backend.alive == set()

    asyncio.run(run())

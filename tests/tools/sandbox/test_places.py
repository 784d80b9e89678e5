"""The pool's places: sandboxes are ended in every state, by every means, and all places are free afterwards."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ToolError
from agentrl.tools.sandbox.base import DaemonError, PathError, SandboxDied, SandboxMemory
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.sandbox.spec import SandboxSpec
from tests.tools.sandbox.test_pool import OTHER, SPEC, Fake, FakeBackend

TOTAL = 3
MEANS: dict[str, BaseException | None] = {
    "memory": SandboxMemory("the whole sandbox ran out of memory"),
    "died": SandboxDied("its runner is gone"),
    "daemon": DaemonError("no answer"),
    "path": PathError("no such file"),
    "tool": ToolError("an agent's fault"),
    "wrong": RuntimeError("a backend's mistake"),
    "cancelled": asyncio.CancelledError(),
    "silent": None,
}
_RAISED = tuple({type(error) for error in MEANS.values() if error is not None})
STATES = ("create", "healthy", "renewed", "reset", "close")


def _can_end(state: str, means: str) -> bool:
    return state not in {"silent": ("create", "healthy", "renewed"), "cancelled": ("renewed",)}.get(means, ())


class Mortal(Fake):
    """A sandbox that ends in a chosen state by chosen means; once closed it holds no place of the backend's."""

    def _live_through(self, state: str) -> None:
        backend = self.backend
        assert isinstance(backend, MortalBackend)
        if fate := backend.fates.get(state):
            error = MEANS[fate.pop()] if fate else None
            if error is not None:
                raise error

    async def _wait_through(self, state: str) -> None:
        backend = self.backend
        assert isinstance(backend, MortalBackend)
        if backend.fates.get(state) and backend.fates[state][-1] == "silent":
            backend.fates[state].pop()
            await asyncio.Event().wait()
        self._live_through(state)

    async def healthy(self) -> bool:
        await self._wait_through("healthy")
        return True

    def renewed(self) -> Mortal:
        self._live_through("renewed")
        return self

    async def reset(self) -> None:
        await asyncio.sleep(0)
        await self._wait_through("reset")

    async def close(self) -> None:
        await asyncio.sleep(0)
        await self._wait_through("close")


class MortalBackend(FakeBackend):
    """Creates them; `fates` are the means by which the next ones end, for each state."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: dict[str, list[str]] = {}

    async def create(self, spec: SandboxSpec) -> Any:
        sandbox = Mortal(self, spec)
        await asyncio.sleep(0)
        sandbox._live_through("create")
        return sandbox


def impatient(backend: MortalBackend, recycle: bool, reset_timeout: float = 0.001) -> SandboxPool:
    """A pool that gives up at once."""
    more: Any = {"backoff": (0.0,), "reset_timeout": reset_timeout, "remove_timeout": 0.001}
    return SandboxPool(backend.create, total=TOTAL, recycle=recycle, **more)


async def assert_every_place_is_free(pool: SandboxPool, backend: MortalBackend) -> None:
    backend.fates.clear()
    for spec in (SPEC, OTHER):
        held = [await pool.acquire(spec, timeout=120) for _ in range(TOTAL)]
        for sandbox in held:
            await pool.release(sandbox)
    await pool.close()
    assert (pool.alive, pool.leased) == (0, 0)


@pytest.mark.parametrize("recycle", [True, False])
@pytest.mark.parametrize("means", MEANS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.slow
async def test_a_place_is_free_after_its_sandbox_ended_in_any_state_by_any_means(
    state: str, means: str, recycle: bool
) -> None:
    """`reset` raised SandboxMemory, the agent's fault, where only SandboxError was expected: after 64 such sandboxes
    every session of a run waited for ten minutes."""
    if not _can_end(state, means):
        pytest.skip("the caller's own deadline ends these, and what awaits nothing is never cancelled")
    backend = MortalBackend()
    pool = impatient(backend, recycle)
    for _ in range(2 * TOTAL):
        backend.fates = {state: [means]}
        try:
            sandbox = await asyncio.wait_for(pool.acquire(SPEC, timeout=120), 120)
        except BaseException:
            continue
        await pool.release(sandbox)
    await assert_every_place_is_free(pool, backend)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("aarrpcx"), st.integers(0, 3), st.sampled_from(list(MEANS))), max_size=30),
    st.booleans(),
)
@pytest.mark.slow
def test_no_order_of_events_and_ends_costs_a_place(events: list[tuple[str, int, str]], recycle: bool) -> None:
    async def run() -> None:
        backend = MortalBackend()
        pool = impatient(backend, recycle)
        held: list[Any] = []
        for event, number, means in events:
            try:
                if event == "a" and len(held) < TOTAL:
                    held.append(await pool.acquire((SPEC, OTHER)[number % 2], timeout=120))
                elif event == "r" and held:
                    await pool.release(held.pop(number % len(held)))
                elif event == "p":
                    await pool.prepare((SPEC, OTHER)[number % 2], number)
                elif event == "c" and len(held) < TOTAL:
                    acquiring = asyncio.ensure_future(pool.acquire((SPEC, OTHER)[number % 2], timeout=120))
                    for _ in range(number):
                        await asyncio.sleep(0)
                    acquiring.cancel()
                    held += [
                        one
                        for one in await asyncio.gather(acquiring, return_exceptions=True)
                        if isinstance(one, Mortal)
                    ]
                elif event == "x" and _can_end(state := STATES[number + len(held) % 2], means):
                    backend.fates[state] = [means]
            except _RAISED:
                pass  # what a fate has raised
        for sandbox in held:
            await pool.release(sandbox)
        await assert_every_place_is_free(pool, backend)

    asyncio.run(run())


async def test_an_acquire_that_is_cancelled_as_its_sandbox_comes_keeps_no_place() -> None:
    """The caller's loop is cancelled between the sandbox's loop having one and the caller hearing of it."""
    backend = MortalBackend()
    pool = impatient(backend, recycle=True)
    for _ in range(2 * TOTAL):
        acquiring = asyncio.ensure_future(pool.acquire(SPEC, timeout=120))
        await asyncio.sleep(0)
        while not await on_loop(_leased(pool)):  # the other loop runs on; this task has heard nothing yet
            pass
        acquiring.cancel()
        came: list[Any] = list(await asyncio.gather(acquiring, return_exceptions=True))
        for one in came:
            if isinstance(one, Mortal):
                await pool.release(one)
    await assert_every_place_is_free(pool, backend)


async def _leased(pool: SandboxPool) -> bool:
    return pool.leased > 0


async def test_what_a_background_task_did_not_expect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    backend = MortalBackend()
    pool = impatient(backend, recycle=True, reset_timeout=20.0)
    sandbox = await pool.acquire(SPEC)
    backend.fates = {"reset": ["wrong"]}
    with caplog.at_level(logging.ERROR):
        await pool.release(sandbox)
        async with asyncio.timeout(120):
            while backend.fates["reset"]:  # noqa: ASYNC110 - until the sandboxes' own loop has met it
                await asyncio.sleep(0.001)
        await assert_every_place_is_free(pool, backend)
    assert "a backend's mistake" in caplog.text

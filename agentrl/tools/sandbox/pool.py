"""A pool: sandboxes created ahead of their use, checked at each acquire, bounded in number.

Each specification has idle sandboxes of its own. Sandboxes are created in the background, few at a time, with pauses
when the daemon fails; a new one goes to the longest waiting caller, or becomes idle. A sandbox that is released is
removed and replaced, or with `recycle` emptied and reused, which is faster. All state belongs to the sandboxes' event
loop, so no lock is needed.

A place is a sandbox alive or on its way. Whatever a backend's code raises, and however long it takes, the place is free
again afterwards: what a command does to its sandbox must cost nobody else one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from agentrl.common.retries import retry, spread
from agentrl.errors import AgentRLError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.docker.backend import create_docker
from agentrl.tools.sandbox.runner.loop import on_loop, sandbox_loop
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
T = TypeVar("T")
Create = Callable[[SandboxSpec], Awaitable[Sandbox]]
BACKOFF = (0.1, 0.4, 1.6, 5.0, 10.0, 15.0)
"""Seconds between attempts to create one, each times 0.5 to 1.5: 16 at least, as a daemon's restart may take 11."""
ANOTHER = "a sandbox failed, and another one is tried: %s"
RESET_SECONDS = 300.0
"""Seconds for emptying a sandbox; longer than a backend's own deadlines, which say more."""
REMOVE_SECONDS = 60.0
"""Seconds for removing a sandbox; what is left of it then is the reaper's."""


@dataclass(slots=True)
class _SpecPool:
    spec: SandboxSpec
    target: int = 0
    idle: deque[Sandbox] = field(default_factory=deque)
    waiting: deque[asyncio.Future[Sandbox]] = field(default_factory=deque)
    creating: int = 0
    failure: AgentRLError | None = None  # the last failure; no further attempt until the next acquire


class SandboxPool:
    """Idle and leased sandboxes of any number of specifications.

    Args:
        create: creates one (`create_docker`, `create_subprocess`).
        total: sandboxes alive at once, leased and idle together.
        creates: how many are created at once.
        recycle: whether to empty and reuse released ones, where the backend can.
        backoff: seconds between attempts to create one, each times 0.5 to 1.5.
        reset_timeout: seconds for emptying one.
        remove_timeout: seconds for removing one.

    Attributes:
        alive: how many sandboxes there are, those that are being created or removed included.
        counts: of events: created, failed, reused, unhealthy, removed.
    """

    def __init__(
        self,
        create: Create = create_docker,
        *,
        total: int = 32,
        creates: int = 4,
        recycle: bool = False,
        backoff: Sequence[float] = BACKOFF,
        reset_timeout: float = RESET_SECONDS,
        remove_timeout: float = REMOVE_SECONDS,
    ) -> None:
        self.total = total
        self._backoff, self._reset_timeout, self._remove_timeout = backoff, reset_timeout, remove_timeout
        self.counts: Counter[str] = Counter()
        self._create = create
        self._recycle = recycle
        self._limit = creates
        self._slots: asyncio.Semaphore | None = None
        self._pools: dict[str, _SpecPool] = {}
        self._owned: dict[str, tuple[Sandbox, _SpecPool]] = {}
        self.alive = 0
        self._removing = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of callers that wait for a sandbox."""
        return sum(len(pool.waiting) for pool in self._pools.values())

    @property
    def leased(self) -> int:
        """The number of sandboxes that callers have."""
        return len(self._owned) - sum(len(pool.idle) for pool in self._pools.values())

    async def prepare(self, spec: SandboxSpec, count: int) -> None:
        """Keep `count` idle sandboxes from now on (0: none); returns at once.

        A pool that recycles keeps as many in all, leased ones included.
        """
        await on_loop(self._prepare(spec, count))

    async def warm(self, spec: SandboxSpec, count: int, timeout: float = 120.0) -> None:
        """Like `prepare`, but returns when they are ready.

        Raises:
            DeadlineExceeded: they are not, after `timeout` seconds.
            SandboxError: creating them failed, repeatedly; ConfigError where no retry helps.
        """
        await self.prepare(spec, count)
        end = time.monotonic() + timeout
        pool = self._pool_of(spec)
        while len(pool.idle) < count:
            if pool.failure:
                raise pool.failure
            if time.monotonic() > end:
                raise DeadlineExceeded(f"{count} sandboxes of {spec.image} were not ready after {timeout:g} s")
            await asyncio.sleep(0.01)

    async def acquire(self, spec: SandboxSpec, timeout: float = 120.0) -> Sandbox:
        """A healthy sandbox, an idle or a new one; `release` returns it.

        Raises:
            DeadlineExceeded: there was none in time.
            SandboxError: creating one failed, repeatedly.
            ConfigError: it can't be created (no such image …).
        """
        held: list[Sandbox] = []

        async def acquire() -> Sandbox:
            held.append(await self._acquire(spec, timeout))
            return held[0]

        try:
            return await on_loop(acquire())
        except asyncio.CancelledError:  # it may have come just before
            asyncio.run_coroutine_threadsafe(self._release_all(held), sandbox_loop())
            raise

    async def release(self, sandbox: Sandbox) -> None:
        """Return a sandbox; it is removed (or emptied) in the background, also where the caller is cancelled."""
        releasing = asyncio.run_coroutine_threadsafe(self._release(sandbox), sandbox_loop())
        await asyncio.shield(asyncio.wrap_future(releasing))

    @contextlib.asynccontextmanager
    async def lease(self, spec: SandboxSpec, timeout: float = 120.0) -> AsyncIterator[Sandbox]:
        """`acquire`, and `release` at the end."""
        sandbox = await self.acquire(spec, timeout)
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def run(self, spec: SandboxSpec, work: Callable[[Sandbox], Awaitable[T]], tries: int = 3) -> T:
        """Run a function in a sandbox of its own, and again in a new one where a sandbox failed.

        The function must have no effect but its result, so that it can be repeated. Failures of its commands are never
        repeated.

        Raises:
            SandboxError: the sandbox failed at every attempt.
        """

        async def attempt() -> T:
            async with self.lease(spec) as sandbox:
                return await work(sandbox)

        return await retry(attempt, SandboxError, [0.0] * (tries - 1), partial(logger.warning, ANOTHER))

    async def close(self) -> None:
        """Remove every sandbox of the pool, leased ones too; idempotent."""
        await on_loop(self._close())

    # -- on the loop

    def _pool_of(self, spec: SandboxSpec) -> _SpecPool:
        return self._pools.setdefault(spec.key, _SpecPool(spec))

    async def _prepare(self, spec: SandboxSpec, count: int) -> None:
        pool = self._pool_of(spec)
        pool.target, pool.failure = count, None
        while len(pool.idle) > count:
            self._discard(pool.idle.popleft())
        self._balance()

    async def _acquire(self, spec: SandboxSpec, timeout: float) -> Sandbox:
        end = time.monotonic() + timeout
        pool = self._pool_of(spec)
        pool.failure = None
        while True:
            if self._closed:
                raise SandboxError("the pool is closed")
            sandbox = pool.idle.popleft() if pool.idle else await self._wait(pool, end)
            self._balance()
            try:
                healthy = await sandbox.healthy()
            except SandboxError as error:
                logger.info("a sandbox is removed: %s", error)
                healthy = False
            except BaseException:  # the caller gave up, or the backend is wrong
                self._discard(sandbox)
                raise
            if healthy:
                return sandbox
            self.counts["unhealthy"] += 1
            self._discard(sandbox)

    async def _wait(self, pool: _SpecPool, end: float) -> Sandbox:
        waiter: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        pool.waiting.append(waiter)
        self._balance()
        try:
            return await asyncio.wait_for(asyncio.shield(waiter), max(0.0, end - time.monotonic()))
        except BaseException as error:
            if waiter.done() and not waiter.exception():
                self._offer(pool, waiter.result())  # assigned while the wait was cancelled
            elif not waiter.done():
                pool.waiting.remove(waiter)
            if isinstance(error, TimeoutError) and not isinstance(error, AgentRLError):
                what = f"no sandbox of {pool.spec.image} was free in time ({self.alive} alive)"
                raise DeadlineExceeded(what) from None
            raise

    def _balance(self) -> None:
        """Start as many creations as callers and targets need and the bound allows; waiting callers come first."""
        if self._closed:
            return
        for wanted in (lambda s: len(s.waiting), self._count_wanted):
            for pool in self._pools.values():
                while pool.creating < wanted(pool) and (self.alive < self.total or self._evict(pool)):
                    pool.creating += 1
                    self.alive += 1
                    self._spawn(self._create_one(pool))

    def _count_wanted(self, pool: _SpecPool) -> int:
        """The number of missing sandboxes, for waiting callers and the target; leased ones count if recycled."""
        have = len(pool.idle)
        if self._recycle:
            have = sum(owner is pool for _, owner in self._owned.values())
        return len(pool.waiting) + (0 if pool.failure else max(0, pool.target - have))

    def _evict(self, requester: _SpecPool) -> bool:
        """Remove an idle sandbox of another specification, where the bound is reached and a caller waits."""
        if len(requester.waiting) > self._removing:
            for pool in self._pools.values():
                if pool is not requester and pool.idle:
                    self._discard(pool.idle.popleft())
                    return False  # its removal will balance again
        return False

    async def _create_one(self, pool: _SpecPool) -> None:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._limit)
        sandbox: Sandbox | None = None
        failure: Exception = SandboxError("creating a sandbox was cancelled")
        try:
            sandbox = await self._create_with_retries(pool.spec, self._slots)
        except Exception as error:
            failure = error
        finally:
            pool.creating -= 1
            if sandbox is None:
                self.alive -= 1
                self.counts["failed"] += 1
                self._fail(pool, failure)
                self._balance()
            else:
                self.counts["created"] += 1
                self._owned[sandbox.id] = sandbox, pool
                self._offer(pool, sandbox)

    async def _create_with_retries(self, spec: SandboxSpec, slots: asyncio.Semaphore) -> Sandbox:
        async def attempt() -> Sandbox:
            async with slots:
                return await self._create(spec)

        def failed(error: Exception) -> None:
            if self._closed:
                raise error
            logger.warning("creating a sandbox failed, another attempt follows: %s", error)

        return await retry(attempt, SandboxError, spread(self._backoff), failed)

    def _fail(self, pool: _SpecPool, error: Exception) -> None:
        failure = error if isinstance(error, AgentRLError) else SandboxError(f"creating a sandbox failed: {error!r}")
        pool.failure = failure
        if not pool.waiting:
            logger.error("idle sandboxes of %s can't be created: %s", pool.spec.image, failure)
        while pool.waiting:
            waiter = pool.waiting.popleft()
            if not waiter.done():
                waiter.set_exception(failure)

    def _offer(self, pool: _SpecPool, sandbox: Sandbox) -> None:
        if self._closed:
            self._discard(sandbox)
            return
        while pool.waiting:
            waiter = pool.waiting.popleft()
            if not waiter.done():
                waiter.set_result(sandbox)
                return
        if len(pool.idle) < max(pool.target, 1 if self._recycle else 0):
            pool.idle.append(sandbox)
            self._balance()  # a caller may wait for another specification
        else:
            self._discard(sandbox)

    async def _release_all(self, sandboxes: list[Sandbox]) -> None:
        for sandbox in sandboxes:
            await self._release(sandbox)

    async def _release(self, sandbox: Sandbox) -> None:
        if sandbox.id not in self._owned:
            return
        owned, pool = self._owned[sandbox.id]
        if owned is not sandbox:  # given back before
            return
        renewed: Sandbox | None = None
        if self._recycle and not self._closed and hasattr(sandbox, "renewed"):  # older plug-ins have no such method
            try:
                renewed = sandbox.renewed()  # a late call may still hold the one that was given back
            except Exception as error:
                logger.info("a sandbox is removed: %s", error)
        if renewed is None:
            self._discard(sandbox)
        else:
            self._owned[renewed.id] = renewed, pool
            self._spawn(self._reuse(pool, renewed))

    async def _reuse(self, pool: _SpecPool, sandbox: Sandbox) -> None:
        empty = False
        try:
            await asyncio.wait_for(sandbox.reset(), self._reset_timeout)
            empty = True
        except (AgentRLError, NotImplementedError, TimeoutError) as error:
            logger.info("a sandbox is removed: %s", error)
        finally:
            if empty:
                self.counts["reused"] += 1
                self._offer(pool, sandbox)
            else:
                self._discard(sandbox)

    def _discard(self, sandbox: Sandbox) -> None:
        if self._owned.pop(sandbox.id, None) is not None:
            self.counts["removed"] += 1
            self._removing += 1
            self._spawn(self._remove(sandbox))

    async def _remove(self, sandbox: Sandbox) -> None:
        try:
            await asyncio.wait_for(sandbox.close(), self._remove_timeout)
        except Exception as error:
            logger.warning("a sandbox could not be removed: %s", error or type(error).__name__)
        finally:
            self.alive -= 1
            self._removing -= 1
            self._balance()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("the pool of sandboxes met an error that it did not expect", exc_info=error)

    async def _close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.target = 0
            for waiter in pool.waiting:
                if not waiter.done():
                    waiter.set_exception(SandboxError("the pool is closed"))
            pool.idle.clear()
        for sandbox, _ in list(self._owned.values()):  # users of leased ones get SandboxDied
            self._discard(sandbox)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

"""A pool: sandboxes made ahead of their use, checked when they are handed out, bounded in number.

Each specification has a shelf. Makers run in the background, few at a time, and back off when the daemon fails;
what they make goes to whoever has waited longest, or onto the shelf. A sandbox that comes back is thrown away and
replaced, or emptied and reused where the pool was told to (`recycle`): reuse is faster, a fresh one is certain.
All state lives on the hub's loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.docker import create_docker
from agentrl.tools.sandbox.hub import on_hub
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
T = TypeVar("T")
Create = Callable[[SandboxSpec], Awaitable[Sandbox]]
BACKOFF = (0.1, 0.4, 1.6, 5.0, 10.0, 15.0)
"""Seconds between a maker's tries, each times 0.5 to 1.5: at the least 16, since a daemon's restart may take 11."""


@dataclass(slots=True)
class _Shelf:
    spec: SandboxSpec
    target: int = 0
    idle: deque[Sandbox] = field(default_factory=deque)
    waiting: deque[asyncio.Future[Sandbox]] = field(default_factory=deque)
    making: int = 0
    failure: AgentRLError | None = None  # why it can't be filled; not tried again until somebody asks


class Pool:
    """Warm sandboxes of any number of specifications.

    Args:
        create: what makes one (`create_docker`, `create_subprocess`, or a test's).
        total: sandboxes alive at once, leased and idle together.
        creates: how many are being made at once.
        recycle: whether to empty and reuse what comes back, where the backend can.

    Attributes:
        counts: what happened: created, failed, reused, unhealthy, thrown_away.
    """

    def __init__(
        self, create: Create = create_docker, *, total: int = 32, creates: int = 4, recycle: bool = False
    ) -> None:
        self.total = total
        self.counts: Counter[str] = Counter()
        self._create = create
        self._recycle = recycle
        self._limit = creates
        self._slots: asyncio.Semaphore | None = None
        self._shelves: dict[str, _Shelf] = {}
        self._owned: dict[str, tuple[Sandbox, _Shelf]] = {}
        self._alive = 0
        self._leaving = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def prepare(self, spec: SandboxSpec, count: int) -> None:
        """Keep `count` sandboxes ready from now on (0: none); returns at once.

        A pool that recycles keeps as many in all, leased ones included: these come back.
        """
        await on_hub(self._prepare(spec, count))

    async def warm(self, spec: SandboxSpec, count: int, timeout: float = 120.0) -> None:
        """Like `prepare`, but returns when they are ready.

        Raises:
            DeadlineExceeded: they are not, after `timeout` seconds.
            SandboxError: making them failed, repeatedly; ConfigError where no retry helps.
        """
        await self.prepare(spec, count)
        end = time.monotonic() + timeout
        shelf = self._shelf(spec)
        while len(shelf.idle) < count:
            if shelf.failure:
                raise shelf.failure
            if time.monotonic() > end:
                raise DeadlineExceeded(f"{count} sandboxes of {spec.image} were not ready after {timeout:g} s")
            await asyncio.sleep(0.01)

    async def acquire(self, spec: SandboxSpec, timeout: float = 120.0) -> Sandbox:
        """A healthy sandbox, from the shelf or a new one; give it back with `release`.

        Raises:
            DeadlineExceeded: there was none in time.
            SandboxError: making one failed, repeatedly.
            ConfigError: it can't be made (no such image …).
        """
        return await on_hub(self._acquire(spec, timeout))

    async def release(self, sandbox: Sandbox) -> None:
        """Take a sandbox back; its removal (or emptying) goes on in the background."""
        await on_hub(self._release(sandbox))

    @contextlib.asynccontextmanager
    async def lease(self, spec: SandboxSpec, timeout: float = 120.0) -> AsyncIterator[Sandbox]:
        """`acquire`, and `release` at the end."""
        sandbox = await self.acquire(spec, timeout)
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def run(self, spec: SandboxSpec, work: Callable[[Sandbox], Awaitable[T]], tries: int = 3) -> T:
        """Run a piece of work in a sandbox of its own, again in a fresh one where a sandbox failed.

        Safe because the work begins from nothing each time: it must keep no effect but its result. What the
        work's commands do is never a reason to try again.

        Raises:
            SandboxError: it failed in every one of them.
        """
        for attempt in range(1, tries + 1):
            try:
                async with self.lease(spec) as sandbox:
                    return await work(sandbox)
            except SandboxError as error:
                if attempt == tries:
                    raise
                logger.warning("a sandbox failed (try %d of %d): %s", attempt, tries, error)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Remove every sandbox that was made here, leased ones too; idempotent."""
        await on_hub(self._close())

    # -- on the hub

    def _shelf(self, spec: SandboxSpec) -> _Shelf:
        return self._shelves.setdefault(spec.key, _Shelf(spec))

    async def _prepare(self, spec: SandboxSpec, count: int) -> None:
        shelf = self._shelf(spec)
        shelf.target, shelf.failure = count, None
        while len(shelf.idle) > count:
            self._discard(shelf.idle.popleft())
        self._balance()

    async def _acquire(self, spec: SandboxSpec, timeout: float) -> Sandbox:
        end = time.monotonic() + timeout
        shelf = self._shelf(spec)
        shelf.failure = None
        while True:
            if self._closed:
                raise SandboxError("the pool is closed")
            sandbox = shelf.idle.popleft() if shelf.idle else await self._wait(shelf, end)
            self._balance()
            try:
                healthy = await sandbox.healthy()
            except BaseException:  # the caller gave up
                self._discard(sandbox)
                raise
            if healthy:
                return sandbox
            self.counts["unhealthy"] += 1
            self._discard(sandbox)

    async def _wait(self, shelf: _Shelf, end: float) -> Sandbox:
        ticket: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        shelf.waiting.append(ticket)
        self._balance()
        try:
            return await asyncio.wait_for(asyncio.shield(ticket), max(0.0, end - time.monotonic()))
        except BaseException as error:
            if ticket.done() and not ticket.exception():
                self._shelve(shelf, ticket.result())  # handed over in the moment that we gave up
            elif not ticket.done():
                shelf.waiting.remove(ticket)
            if isinstance(error, TimeoutError) and not isinstance(error, AgentRLError):
                what = f"no sandbox of {shelf.spec.image} was free in time ({self._alive} alive)"
                raise DeadlineExceeded(what) from None
            raise

    def _balance(self) -> None:
        """Start as many makers as waiters and shelves want and the bound allows; waiters come first."""
        if self._closed:
            return
        for wanted in (lambda s: len(s.waiting), self._wanted):
            for shelf in self._shelves.values():
                while shelf.making < wanted(shelf) and (self._alive < self.total or self._evict(shelf)):
                    shelf.making += 1
                    self._alive += 1
                    self._spawn(self._make(shelf))

    def _wanted(self, shelf: _Shelf) -> int:
        """How many sandboxes a shelf lacks, those who wait for one included; what is leased comes back if recycled."""
        have = len(shelf.idle)
        if self._recycle:
            have = sum(owner is shelf for _, owner in self._owned.values())
        return len(shelf.waiting) + (0 if shelf.failure else max(0, shelf.target - have))

    def _evict(self, needy: _Shelf) -> bool:
        """Where the bound is reached and somebody waits: give up an idle sandbox of another kind."""
        if len(needy.waiting) > self._leaving:
            for shelf in self._shelves.values():
                if shelf is not needy and shelf.idle:
                    self._discard(shelf.idle.popleft())
                    return False  # its removal will balance again
        return False

    async def _make(self, shelf: _Shelf) -> None:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._limit)
        try:
            sandbox = await self._try(shelf.spec)
        except Exception as error:
            self._alive -= 1
            shelf.making -= 1
            self.counts["failed"] += 1
            self._fail(shelf, error)
            return
        shelf.making -= 1
        self.counts["created"] += 1
        self._owned[sandbox.id] = sandbox, shelf
        self._shelve(shelf, sandbox)

    async def _try(self, spec: SandboxSpec) -> Sandbox:
        assert self._slots is not None
        for pause in (*BACKOFF, None):
            try:
                async with self._slots:
                    return await self._create(spec)
            except SandboxError as error:
                if pause is None or self._closed:
                    raise
                logger.warning("making a sandbox failed, trying again: %s", error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _fail(self, shelf: _Shelf, error: Exception) -> None:
        """Tell those who wait."""
        told = error if isinstance(error, AgentRLError) else SandboxError(f"making a sandbox failed: {error!r}")
        shelf.failure = told
        if not shelf.waiting:
            logger.error("a shelf of %s can't be filled: %s", shelf.spec.image, told)
        while shelf.waiting:
            ticket = shelf.waiting.popleft()
            if not ticket.done():
                ticket.set_exception(told)

    def _shelve(self, shelf: _Shelf, sandbox: Sandbox) -> None:
        if self._closed:
            self._discard(sandbox)
            return
        while shelf.waiting:
            ticket = shelf.waiting.popleft()
            if not ticket.done():
                ticket.set_result(sandbox)
                return
        if len(shelf.idle) < max(shelf.target, 1 if self._recycle else 0):
            shelf.idle.append(sandbox)
            self._balance()  # somebody may wait for another kind, in whose way it is
        else:
            self._discard(sandbox)

    async def _release(self, sandbox: Sandbox) -> None:
        if sandbox.id not in self._owned:
            return
        if self._recycle and not self._closed:
            self._spawn(self._reuse(self._owned[sandbox.id][1], sandbox))
        else:
            self._discard(sandbox)

    async def _reuse(self, shelf: _Shelf, sandbox: Sandbox) -> None:
        try:
            await sandbox.reset()
        except (SandboxError, NotImplementedError) as error:
            logger.info("a sandbox is thrown away: %s", error)
            self._discard(sandbox)
            return
        self.counts["reused"] += 1
        self._shelve(shelf, sandbox)

    def _discard(self, sandbox: Sandbox) -> None:
        if self._owned.pop(sandbox.id, None) is not None:
            self.counts["thrown_away"] += 1
            self._leaving += 1
            self._spawn(self._remove(sandbox))

    async def _remove(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.close()
        except Exception as error:
            logger.warning("a sandbox could not be removed: %s", error)
        finally:
            self._alive -= 1
            self._leaving -= 1
            self._balance()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        self._closed = True
        for shelf in self._shelves.values():
            shelf.target = 0
            for ticket in shelf.waiting:
                if not ticket.done():
                    ticket.set_exception(SandboxError("the pool is closed"))
            shelf.idle.clear()
        for sandbox, _ in list(self._owned.values()):  # those who still hold one get SandboxDied
            self._discard(sandbox)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

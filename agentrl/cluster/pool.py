"""Workers of one role that share its calls: each call goes to the worker that has fewest, of equals in turn.

Those that die or don't answer are replaced, others are added where nodes join, and those on nodes that are drained end
once their calls have. Other processes call the same workers (`agentrl.cluster.shared_pool`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from agentrl import cluster
from agentrl.cluster import Address, Role, Worker
from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement import elastic
from agentrl.cluster.placement.inventory import apply_settings
from agentrl.cluster.restarted_server import Restarts
from agentrl.cluster.wire.connection import Calling
from agentrl.common.concurrency import hold_task, in_thread
from agentrl.errors import AgentRLError, DeadlineExceeded, InfraError, WorkerLost, WorkerTimeout, brief

if TYPE_CHECKING:
    from agentrl.config import ClusterConfig

logger = logging.getLogger(__name__)


class Workers(Protocol):
    """Several workers that share calls: a `WorkerPool`, or another process's (`DistantPool`)."""

    async def call(self, method: str, *arguments: Any, timeout: float | None) -> Any:
        """Call a method of the worker that has fewest calls.

        Raises:
            WorkerLost: the worker died meanwhile, or could not be reached.
            WorkerTimeout: it did not answer in time, and is ended.
            InfraError: no worker is left.
            AgentRLError: the role raised it.
        """

    def held(self) -> AbstractAsyncContextManager[Calling]:
        """The worker that has fewest calls, for several of them: it counts as called until the block ends.

        A call in the block that finds it dead, or that it does not answer in time, ends the block as `call` does.
        """


@asynccontextmanager
async def open_pool(role: Role, count: int, limits: ClusterConfig) -> AsyncIterator[WorkerPool]:
    """A pool whose workers are ready, within the block; it ends with an InfraError where none of them is left."""
    pool = WorkerPool(role, count, limits.start_timeout, limits.max_restarts)
    try:
        await pool.start()
        async with cluster.while_not_lost(pool.none_left):
            yield pool
    finally:
        with contextlib.suppress(InfraError):
            await pool.close()


class WorkerPool:
    """Workers of one role that share its calls; the dead are replaced.

    Args:
        role: what each runs.
        count: how many there are.
        timeout: seconds that one may take to start.
        replacements: how many that die are replaced (`cluster.max_restarts`).
        most: how many there may be, where nodes join; None is `count`.
        within: the seconds in which those that die are counted; None: all that do.

    Attributes:
        none_left: gets an error when a call finds no worker, and none is about to start.
        under_way: the calls that each worker has.
    """

    def __init__(
        self,
        role: Role,
        count: int,
        timeout: float,
        replacements: int,
        most: int | None = None,
        within: float | None = None,
    ) -> None:
        self._role, self._timeout, self._restarts = role, timeout, Restarts(replacements, within)
        self._count, self._most, self._given_up = count, most, 0
        self.under_way = {cluster.current().spawn(role): 0 for _ in range(count)}
        self._leaving: set[Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._last_error = ""
        self.none_left: Future[InfraError] = Future()

    @property
    def nodes(self) -> list[str]:
        """The node of each worker that takes calls."""
        return [worker.node for worker in self.under_way if worker not in self._leaving]

    async def start(self) -> None:
        """Start all workers and wait until they are ready; from then on they and the nodes are watched."""
        await asyncio.gather(*(worker.ready(self._timeout) for worker in self.under_way))
        for worker in self.under_way:
            self._watch(worker)
        if cluster.current().name != "local":
            self._following = asyncio.create_task(self._follow(self._usable(await in_thread(cluster.current().nodes))))

    async def call(self, method: str, *arguments: Any, timeout: float | None) -> Any:
        async with self.held() as worker:
            return await worker.call(method, *arguments, timeout=timeout)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Calling]:
        async with self.lease() as worker:
            try:
                yield worker
            except InfraError as error:
                late = isinstance(error, DeadlineExceeded)
                if worker.poll() is None and not late:
                    raise
                self.give_up(worker, str(error))
                raise (WorkerTimeout if late else WorkerLost)(str(error)) from None

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Worker]:
        """The worker that has fewest calls; it has one more within the block.

        Raises:
            InfraError: no worker is left.
        """
        while not self.under_way:
            if not self._starting:
                why = f"; the last one: {self._last_error}" if self._last_error else ""
                error = InfraError(f"no worker of {self._role} is left ({self._restarts}){why}")
                if not self.none_left.done():
                    self.none_left.set_result(error)
                raise error
            await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
        staying = [worker for worker in self.under_way if worker not in self._leaving]
        worker = min(staying or self.under_way, key=self.under_way.__getitem__)
        self.under_way[worker] = self.under_way.pop(worker) + 1  # it is the last one now, among equals
        try:
            yield worker
        finally:
            if worker in self.under_way:
                self.under_way[worker] -= 1

    def give_up(self, worker: Worker, why: str) -> None:
        """End a worker that died or does not answer, and start another one in its place."""
        if self.under_way.pop(worker, None) is None:
            return  # for another of its calls
        self._last_error = brief(why)
        logger.warning("a worker of %s on %s is lost: %s", self._role, worker.node, self._last_error)
        leaving = worker in self._leaving
        self._leaving.discard(worker)
        worker.kill()
        hold_task(worker.close(), self._ending)
        if not leaving:
            self._start_another()

    def give_up_at(self, address: Address, why: str) -> None:
        """`give_up` of the worker at an address; one that is no longer there is ignored."""
        for worker in [each for each in self.under_way if each.address == address]:
            self.give_up(worker, why)

    def _usable(self, nodes: Sequence[ClusterNode]) -> int:
        return elastic.usable(nodes, apply_settings(self._role, cluster.current().resources).resources)

    def _watch(self, worker: Worker) -> None:
        """Have a worker replaced when it dies, also where no call of this process is under way."""
        loop = asyncio.get_running_loop()

        def note_end(future: Future[InfraError]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the calls
                loop.call_soon_threadsafe(self.give_up, worker, str(future.result()))

        worker.ended.add_done_callback(note_end)

    def _start_another(self) -> None:
        """Start a worker in the place of one that died, if there may be one more."""
        if self._restarts.allow():
            self._start()
        else:
            self._given_up += 1

    def _start(self) -> None:
        hold_task(self._add(), self._starting)

    async def _add(self) -> None:
        worker: Worker | None = None
        try:
            worker = await in_thread(cluster.current().spawn, self._role)
            await worker.ready(self._timeout)
        except AgentRLError as error:
            self._last_error = brief(str(error))
            logger.warning("a worker of %s could not be started: %s", self._role, self._last_error)
            if worker is not None:
                await worker.close()
            self._start_another()
        except BaseException:
            if worker is not None:
                worker.kill()
            raise
        else:
            self.under_way[worker] = 0
            self._watch(worker)

    async def _follow(self, before: int) -> None:
        """Start workers where nodes join, and have those on drained nodes end once their calls have."""
        while True:
            nodes = await in_thread(cluster.current().nodes)
            drained = elastic.find_drained(nodes)
            self._leaving |= {worker for worker in self.under_way if worker.node in drained}
            want = elastic.count_wanted(self._count, self._most, before, self._usable(nodes)) - self._given_up
            for _ in range(want - len(self.nodes) - len(self._starting)):
                self._start()
            for worker in [each for each in self._leaving if self.nodes and not self.under_way[each]]:
                self._leaving.discard(worker)
                del self.under_way[worker]
                await worker.close()
            await asyncio.sleep(elastic.LOOK_SECONDS)

    async def close(self) -> None:
        """End all of the workers."""
        tasks = [*self._starting, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        workers = list(self.under_way)
        self.under_way.clear()  # their end is no death
        closing = (worker.close() for worker in workers)
        await asyncio.gather(*tasks, *self._ending, *closing, return_exceptions=True)

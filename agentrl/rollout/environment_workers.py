"""A run's environment workers: replaced where they die, added where nodes join, ended where nodes are drained."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agentrl import cluster
from agentrl.cluster import Role, Worker, elastic
from agentrl.concurrency import in_thread
from agentrl.errors import AgentRLError, DeadlineExceeded, InfraError, brief
from agentrl.types import Session, Status

logger = logging.getLogger(__name__)
Left = tuple[float, float] | None
"""A group's deadline: its seconds in all, and those that are left."""


class Workers:
    """See the module's docstring.

    Args:
        role: what each runs.
        count: how many there are.
        timeout: seconds that one may take to start.
        replacements: how many that die are replaced.
        most: how many there may be, where nodes join; None is `count`.
    """

    def __init__(self, role: Role, count: int, timeout: float, replacements: int, most: int | None = None) -> None:
        self._role, self._timeout, self.replacements = role, timeout, replacements
        self._count, self._most, self._given_up = count, most, 0
        self._under_way = {cluster.current().spawn(role): 0 for _ in range(count)}
        self._leaving: set[Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> list[str]:
        """The node of each worker that takes sessions."""
        return [worker.node for worker in self._under_way if worker not in self._leaving]

    async def start(self) -> None:
        """Until all are ready; from then on the nodes are followed."""
        await asyncio.gather(*(worker.ready(self._timeout) for worker in self._under_way))
        if cluster.current().name != "local":
            nodes = await in_thread(cluster.current().nodes)
            self._following = asyncio.create_task(self._follow(elastic.usable(nodes)))

    async def play(self, session: Session, *how: Any, timeout: float | None) -> Session:
        """Play a session on the worker that has fewest; a worker's death makes it an INFRA_ERROR.

        Args:
            session: it.
            *how: the other arguments of the role's `play`.
            timeout: seconds after which the worker is given up.
        """
        while not self._under_way:
            if not self._starting:
                raise InfraError("no environment worker is left (cluster.max_restarts)")
            await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
        staying = [worker for worker in self._under_way if worker not in self._leaving]
        worker = min(staying or self._under_way, key=self._under_way.__getitem__)
        self._under_way[worker] += 1
        try:
            found: Session = await worker.call("play", session, *how, timeout=timeout)
        except InfraError as error:
            if worker.poll() is None and not isinstance(error, DeadlineExceeded):
                raise
            self._replace(worker)
            session.status, session.error = Status.INFRA_ERROR, str(error)
            return session
        finally:
            if worker in self._under_way:
                self._under_way[worker] -= 1
        return found

    def _replace(self, worker: Worker) -> None:
        if self._under_way.pop(worker, None) is None:
            return  # for another of its sessions
        logger.warning("an environment worker on %s died", worker.node)
        leaving = worker in self._leaving
        self._leaving.discard(worker)
        worker.kill()
        if not leaving:
            self._start_another()

    def _start_another(self) -> None:
        """Start a worker in the place of one that died, if there may be one more."""
        if self.replacements:
            self.replacements -= 1
            self._start()
        else:
            self._given_up += 1

    def _start(self) -> None:
        task = asyncio.create_task(self._add())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _add(self) -> None:
        worker: Worker | None = None
        try:
            worker = await in_thread(cluster.current().spawn, self._role)
            await worker.ready(self._timeout)
        except AgentRLError as error:
            logger.warning("an environment worker could not be started: %s", brief(str(error)))
            if worker is not None:
                await worker.close()
            self._start_another()
        except BaseException:
            if worker is not None:
                worker.kill()
            raise
        else:
            self._under_way[worker] = 0

    async def _follow(self, before: int) -> None:
        """Start workers where nodes join, and have those on drained nodes end once their sessions have.

        Args:
            before: the usable nodes when the workers started.
        """
        while True:
            nodes = await in_thread(cluster.current().nodes)
            drained = elastic.drained(nodes)
            self._leaving |= {worker for worker in self._under_way if worker.node in drained}
            want = elastic.wanted(self._count, self._most, before, elastic.usable(nodes)) - self._given_up
            for _ in range(want - len(self.nodes) - len(self._starting)):
                self._start()
            for worker in [each for each in self._leaving if self.nodes and not self._under_way[each]]:
                self._leaving.discard(worker)
                del self._under_way[worker]
                await worker.close()
            await asyncio.sleep(elastic.LOOK_SECONDS)

    async def close(self) -> None:
        """End all of them."""
        tasks = [*self._starting, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(worker.close() for worker in self._under_way), return_exceptions=True)

"""A pool's workers for other processes: they ask the pool's process which worker has fewest calls, and call that one.

What is sent and answered goes straight from caller to worker; the pool's process hears that a call begins and ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from agentrl import cluster
from agentrl.cluster.pool import WorkerPool
from agentrl.cluster.wire.calls import Listener
from agentrl.cluster.wire.connection import Address, Calling, Connection, Link
from agentrl.errors import DeadlineExceeded, InfraError, WorkerLost, WorkerTimeout

_TOLD_SECONDS = 20.0


class PoolAccess:
    """A pool for other processes, in the pool's own; the target of a `Listener`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def lease(self) -> AsyncIterator[Address]:
        """The address of the worker that has fewest calls; it has one more until the caller leaves, or has died.

        Raises:
            InfraError: no worker is left.
        """
        async with self._pool.lease() as worker:
            yield worker.address
            await asyncio.Event().wait()

    def give_up(self, address: Address, why: str) -> None:
        """See `WorkerPool.give_up`."""
        self._pool.give_up_at(address, why)


@asynccontextmanager
async def shared_pool(pool: WorkerPool, name: str) -> AsyncIterator[Address]:
    """Yield the address for calls from other processes (`DistantPool`); `name` names the workers in messages."""
    here, key = cluster.current(), secrets.token_bytes(32)
    async with Listener(PoolAccess(pool), name, name, here.host, key, encrypted=here.encrypted) as address:
        yield address


class DistantPool:
    """`agentrl.cluster.pool.Workers` over the pool of another process.

    Args:
        access: where its `PoolAccess` is called.
    """

    def __init__(self, access: Address) -> None:
        self._access, self._links = access, dict[Address, Link]()

    async def call(self, method: str, *arguments: Any, timeout: float | None) -> Any:
        async with self.held() as worker:
            return await worker.call(method, *arguments, timeout=timeout)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Calling]:
        pool = await self._connect(self._access)
        async with aclosing(pool.stream("lease", timeout=None)) as leases:
            address: Address = await anext(leases)
            connection: Connection | None = None
            try:
                connection = await self._connect(address)
                yield connection
            except InfraError as error:
                late = isinstance(error, DeadlineExceeded)
                if connection is not None and not connection.ended.done() and not late:
                    raise
                await pool.call("give_up", address, str(error), timeout=_TOLD_SECONDS)
                raise (WorkerTimeout if late else WorkerLost)(str(error)) from None

    async def _connect(self, address: Address) -> Connection:
        if address not in self._links:
            self._links[address] = Link(address)
        return await self._links[address].connection()

    def close(self) -> None:
        for link in self._links.values():
            link.close()

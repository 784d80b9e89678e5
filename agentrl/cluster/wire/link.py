"""A connection to a worker that is made when it is first needed, and anew where it has ended."""

from __future__ import annotations

import asyncio

from agentrl.cluster.wire.connection import Address, Connection, connect


class Link:
    """A connection to a worker, made when it is needed; for coroutines of one event loop."""

    def __init__(self, address: Address) -> None:
        self._address, self._making = address, asyncio.Lock()
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        """The connection; InfraError where nobody answers there, or not with the worker's key."""
        async with self._making:
            if self._connection is None or self._connection.ended.done():
                self._connection = await asyncio.to_thread(connect, self._address)
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

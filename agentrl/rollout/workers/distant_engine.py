"""The engines of the run's process in another process: environment workers generate by them.

Directly where they can be reached (`agentrl.rollout.workers.leases`), else through the run's process.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from agentrl.cluster import Address, Connection, connect
from agentrl.common.deadline import HEALTH_SECONDS
from agentrl.errors import DeadlineExceeded, EngineError
from agentrl.rollout.workers.leases import Leases, NotReachable
from agentrl.types import MAIN, Capabilities, Chunk, Health, PauseMode, Placed, Sampling, Turn


class EngineCalls:
    """A process's connection to an `EngineAccess`, shared by its engines."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None
        self.leases, self.not_reachable = Leases(lambda: self.connection), set[str]()

    @property
    def connection(self) -> Connection:
        """The connection, made anew where it has ended."""
        if self._connection is None or self._connection.ended.done():
            self._connection = connect(self._address)
        return self._connection

    async def close(self) -> None:
        """Close it, and those to engines. Idempotent."""
        await self.leases.close()
        if self._connection is not None:
            self._connection.close()


class DistantEngine:
    """`agentrl.types.Engine` in another process; it only generates and scores."""

    def __init__(self, calls: EngineCalls, capabilities: Capabilities, policy: str = MAIN) -> None:
        self._calls, self.capabilities, self._policy = calls, capabilities, policy

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        if deadline is not None and deadline <= time.monotonic():
            raise DeadlineExceeded(f"request {request_id!r} came after its deadline")
        calls, policy = self._calls, self._policy
        if policy not in calls.not_reachable:
            asked = request_id, input_ids, sampling, deadline, self.capabilities.vocab_size, attached
            try:
                async with aclosing(calls.leases.generate(policy, *asked)) as items:
                    async for item in items:
                        yield item
                return
            except NotReachable:
                calls.not_reachable.add(policy)
        seconds = None if deadline is None else deadline - time.monotonic()
        request = policy, request_id, array("i", input_ids), sampling, seconds, list(attached)
        async with aclosing(calls.connection.stream("generate", *request, timeout=seconds)) as items:
            async for item in items:
                yield item

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probability of each token given those before it."""
        connection = self._calls.connection
        found: list[float] = await connection.call("score", self._policy, list(input_ids), temperature, timeout=None)
        return found

    async def health(self) -> Health:
        found: Health = await self._calls.connection.call("health", self._policy, timeout=HEALTH_SECONDS)
        return found

    def version(self) -> int:
        """Return 0: each turn says which version generated it."""
        return 0

    async def publish(self, weights: Any, version: int) -> None:
        raise EngineError("weights are published by the run's process")

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        raise EngineError("engines are paused by the run's process")

    async def resume(self) -> None:
        raise EngineError("engines are resumed by the run's process")

    async def close(self) -> None:
        await self._calls.close()

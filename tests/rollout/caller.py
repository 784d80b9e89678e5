"""A process that generates by the run's engines, as environment workers do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from agentrl.cluster import Address
from agentrl.rollout.distant_engine import DistantEngine, EngineCalls
from agentrl.sessions.generation import generate, generate_turn
from agentrl.types import Capabilities, Chunk, Sampling, Turn

PATIENCE = 500.0


class Caller:
    """A role.

    Args:
        address: where the engines are called.
        capabilities: theirs.
    """

    def __init__(self, address: Address, capabilities: Capabilities) -> None:
        self.calls = EngineCalls(address)
        self.engine = DistantEngine(self.calls, capabilities)

    async def turn(self, name: str, ids: Sequence[int], sampling: Sampling) -> Turn:
        """A turn, continued until it is whole."""
        return await generate_turn(self.engine, name, ids, sampling, time.monotonic() + PATIENCE)

    async def items(self, name: str, ids: Sequence[int], sampling: Sampling) -> AsyncIterator[Chunk | Turn]:
        """The same, as it comes."""
        async for item in generate(self.engine, name, ids, sampling, time.monotonic() + PATIENCE):
            yield item

    def forwarded(self) -> set[str]:
        """The policies that it generates by through the run's process."""
        return self.calls.not_reachable

    async def close(self) -> None:
        """Close its connections."""
        await self.calls.close()

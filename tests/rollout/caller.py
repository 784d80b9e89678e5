"""A process that generates by the run's engines, as environment workers do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from agentrl.cluster import Address
from agentrl.rollout.workers import leases
from agentrl.rollout.workers.distant_engine import DistantEngine, EngineCalls
from agentrl.sessions.tree.generation import generate, generate_turn
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

    async def turn(self, name: str, ids: Sequence[int], sampling: Sampling, kept: bool = False) -> Turn:
        """A turn, continued until it is whole; it ends its session, unless that is `kept`."""
        try:
            return await generate_turn(self.engine, name, ids, sampling, time.monotonic() + PATIENCE)
        finally:
            if not kept:
                self.over(name.partition("/")[0])

    async def session(self, name: str, turns: int, sampling: Sampling) -> list[tuple[int, list[int]]]:
        """A session of so many turns: of each, how many tokens it has and the policy versions that generated them."""
        ids, found = [5, 6, 7, 8], []
        for number in range(turns):
            turn = await self.turn(f"{name}/{number}", ids, sampling, kept=number < turns - 1)
            ids += turn.token_ids
            found.append((len(turn.token_ids), [span.version for span in turn.versions]))
        return found

    async def items(
        self, name: str, ids: Sequence[int], sampling: Sampling, kept: bool = False
    ) -> AsyncIterator[Chunk | Turn]:
        """The same, as it comes."""
        try:
            async for item in generate(self.engine, name, ids, sampling, time.monotonic() + PATIENCE):
                yield item
        finally:
            if not kept:
                self.over(name.partition("/")[0])

    def over(self, session: str) -> None:
        """Its session is over."""
        self.calls.leases.session_over(session)

    def keep_for(self, seconds: float) -> None:
        """Leases are given back after so many seconds without a turn."""
        leases.KEPT_SECONDS = seconds

    def forwarded(self) -> set[str]:
        """The policies that it generates by through the run's process."""
        return self.calls.not_reachable

    async def close(self) -> None:
        """Close its connections."""
        await self.calls.close()

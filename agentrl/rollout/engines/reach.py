"""Direct generation by an engine from other processes, not through the process that manages it.

A `EngineAddress` is sent to the other process, which opens it once and generates by what it gets. Who generates, and
when, is decided by the managing process (`agentrl.rollout.workers.leases`), which also starts, pauses and updates the
engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from agentrl.types import Chunk, Placed, Sampling, Turn


class EngineClient(Protocol):
    """An engine that another process manages; the methods are those of `Engine` and `ManagedEngine`."""

    def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`."""

    def set_version(self, version: int) -> None:
        """Note that its weights are policy `version` now."""

    async def close(self) -> None:
        """Close the connections; the engine goes on."""


class EngineAddress(Protocol):
    """An engine's address; picklable."""

    async def open(self) -> EngineClient:
        """Connect to the engine; EngineError where it is gone."""

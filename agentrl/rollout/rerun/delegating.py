"""The part of the engines of reruns and replays that another engine does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agentrl.rollout.engines.managed import ManagedEngine, as_managed
from agentrl.types import Capabilities, Engine, Health, PauseMode, Sampling


class DelegatingEngine(ManagedEngine):
    """All of `types.Engine` but `generate`, and of `ManagedEngine` what starts, scores and ends, by another engine.

    Args:
        engine: that one.
    """

    def __init__(self, engine: Engine) -> None:
        self.inner = engine
        self.colocated = as_managed(engine).colocated

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def unrecorded(self, sampling: Sampling) -> str:
        return as_managed(self.inner).unrecorded(sampling)

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        return await self.inner.score(input_ids, temperature)

    async def scores(self, input_ids: Sequence[int], temperature: float = 1.0) -> dict[str, list[float]]:
        return await as_managed(self.inner).scores(input_ids, temperature)

    async def checksums(self) -> dict[str, str]:
        return await as_managed(self.inner).checksums()

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        await self.inner.publish(weights, version)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self.inner.pause(mode)

    async def resume(self) -> None:
        await self.inner.resume()

    def version(self) -> int:
        return self.inner.version()

    async def health(self) -> Health:
        return await self.inner.health()

    async def start(self) -> None:
        await as_managed(self.inner).start()

    async def sleep(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await as_managed(self.inner).sleep(tags)

    async def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await as_managed(self.inner).wake(tags)

    async def close(self) -> None:
        await self.inner.close()

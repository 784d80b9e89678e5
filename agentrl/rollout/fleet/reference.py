"""Did weights arrive? An engine beside the run's has loaded them from a folder, and has a checksum, too.

Engines digest their own tensors: fused, sharded and cast as they compute with them. No trainer can tell what that
digest should be, but another engine of the same kind and settings can, once it has loaded the same weights. Its first
ones it loads as it starts, from a folder that is written for it, so that whatever is wrong with an update of running
engines is not wrong with it as well; later ones it is sent (a server: from a folder again), by no route that it shares
with the run's engines. Starting it anew each time would take a server a minute or more.

The price is the memory of one more engine, as long as the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from agentrl.common.scratch import ScratchFolder
from agentrl.config import EngineConfig, FleetConfig, WeightsConfig
from agentrl.errors import ConfigError
from agentrl.rollout.engines import ENGINES, make_engine
from agentrl.rollout.fleet import divide_cores, has_publisher
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights import conversion, make_publisher
from agentrl.rollout.weights.buckets import Named
from agentrl.rollout.weights.snapshot import write_snapshot


class ReferenceEngine:
    """An engine of the kind of the run's, which nothing is generated with; it starts when it is first needed.

    Args:
        engine, fleet: the settings of the run's engines.
        weights: how the run's engines get weights; `prove_every` says how often.
        base: the model's folder.
    """

    def __init__(self, engine: EngineConfig, fleet: FleetConfig, weights: WeightsConfig, base: Path) -> None:
        self._config = own(engine)
        self._fleet = fleet.model_copy(update={"engines": 1, "urls": ()})
        self._every, self._seen, self._base, self._limit = weights.prove_every, 0, base, weights.bucket_bytes
        published = has_publisher(engine, fleet.model_copy(update={"engines": fleet.count}), weights)
        self._sent = WeightsConfig(dtype=weights.dtype if published else None, timeout=weights.timeout)
        self._engine: Fleet | None = None
        self._scratch: ScratchFolder | None = None

    async def checksum(self, weights: Iterable[Named], version: int) -> str:
        """The checksum of an engine that has loaded weights from a folder; '' where this publication is not proved.

        Args:
            weights: what the run's engines were sent; read once.
            version: theirs.

        Raises:
            ConfigError: this kind of engine has no checksum.
            EngineError: it did not start, or did not take the weights.
        """
        if self._seen % self._every:
            self._seen += 1
            return ""
        if self._engine is None:
            self._engine = await self._start(weights)
        else:
            await self._engine.publish(weights, version)
        found = next(iter((await self._engine.checksums()).values()), "")
        if not found:
            raise ConfigError(f"weights.prove_every: engine={self._config.name} has no checksum of its weights")
        self._seen += 1  # and not before: where the trainer dies, this publication begins anew
        return found

    async def _start(self, weights: Iterable[Named]) -> Fleet:
        self._scratch = self._scratch or ScratchFolder()
        folder = self._scratch.path / "exported"
        convert = conversion(self._sent, self._base, self._config)
        await asyncio.to_thread(write_snapshot, convert(weights), folder, self._base, self._limit)
        settings = divide_cores(self._config, self._fleet, folder)[0]
        publisher = make_publisher(self._sent, folder, settings, ENGINES.find(settings.name).ranks(settings))
        engine = Fleet([lambda: make_engine(settings, folder)], publisher, self._fleet)
        await engine.start()
        return engine

    async def close(self) -> None:
        """End it, and remove its folder. Idempotent."""
        if self._engine is not None:
            await self._engine.close()
        if self._scratch is not None:
            self._scratch.close()
        self._engine = self._scratch = None


def own(engine: EngineConfig) -> EngineConfig:
    """The settings of an engine that is started here, also where the run's are servers that run already."""
    return engine.model_copy(update={"url": None}) if getattr(engine, "url", None) else engine

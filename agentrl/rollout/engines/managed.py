"""An engine's optional parts beyond `types.Engine`, for a fleet that starts, probes, restarts and updates it.

Every method has a default that suits an engine in this process, so an engine overrides what differs. One that is no
`ManagedEngine` (any class that keeps `types.Engine`) is wrapped by `as_managed`, and gets all defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.rollout.engines.reach import EngineAddress
from agentrl.rollout.weights.receiver import EngineReceiver, Receiver
from agentrl.types import Engine, Sampling


class ManagedEngine:
    """The defaults.

    Attributes:
        attached: its server was running before, so it can't be restarted from here.
        colocated: it gives its accelerator memory to the trainer between rollouts (`sleep`, `wake`).
        node: the node of the run's cluster that it is on; '' where that does not matter.
    """

    attached: bool = False
    colocated: bool = False
    node: str = ""

    async def start(self) -> None:
        """Return once it is ready; EngineError where it could not be started."""

    def kill(self) -> None:
        """Kill processes that may hang; `close` follows."""

    def set_version(self, version: int) -> None:
        """Note that its weights are policy `version` now, after its receiver loaded them."""

    @property
    def reach(self) -> EngineAddress | None:
        """The engine's address, by which other processes generate directly; None: they can't."""
        return None

    @property
    def receiver(self) -> Receiver:
        """The receiver of the engine's weights."""
        return EngineReceiver(self._engine)

    def unrecorded(self, sampling: Sampling) -> str:
        """Return why a ready engine records nothing of what so sampled turns are drawn from; '' where it does."""
        return ""

    async def scores(self, input_ids: Sequence[int], temperature: float = 1.0) -> dict[str, list[float]]:
        """Return `Engine.score` by name, of every engine behind it."""
        engine = self._engine
        return {engine.capabilities.name: await engine.score(input_ids, temperature)}

    async def checksums(self) -> dict[str, str]:
        """Return each engine's own digest of its weights, by name; '' where it has none."""
        return {self._engine.capabilities.name: await self.receiver.checksum()}

    async def sleep(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Give accelerator memory back; for colocated ones."""

    async def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Allocate the memory again; weights must be published afterwards."""

    @property
    def _engine(self) -> Engine:
        assert isinstance(self, Engine)
        return self


class _Plain(ManagedEngine):
    """The defaults for an engine that brings nothing of its own."""

    def __init__(self, engine: Engine) -> None:
        self._wrapped = engine

    @property
    def _engine(self) -> Engine:
        return self._wrapped


def as_managed(engine: Engine) -> ManagedEngine:
    """Return an engine's optional parts; defaults for those it lacks."""
    return engine if isinstance(engine, ManagedEngine) else _Plain(engine)

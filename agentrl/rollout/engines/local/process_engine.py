"""The local engine in a process of its own: it generates while this one trains, and neither waits for the other's lock.

The process runs a `LocalEngine`, so tokens and log-probabilities are those of one in this process with as many threads,
bit for bit. It is a worker of the current cluster (`agentrl.cluster`), on this machine or on another; it ends with this
process, however that ends, and a fleet starts it anew where it dies. Weights go through a folder.

Given up: the second process loads torch and the model again, which takes seconds and some hundred megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agentrl import cluster
from agentrl.cluster import Address, Resources, Role
from agentrl.cluster.wire.connection import Link
from agentrl.common.scratch import ScratchFolder
from agentrl.config import EngineConfig
from agentrl.errors import DeadlineExceeded, EngineError, InfraError
from agentrl.rollout.engines.folder import ModelFacts, write_model
from agentrl.rollout.engines.managed import ManagedEngine
from agentrl.rollout.engines.reach import EngineAddress, EngineClient
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit, Receiver
from agentrl.types import Capabilities, Chunk, Health, PauseMode, Placed, Sampling, Turn

START_SECONDS = 900.0
"""Seconds that the process may take to load the model."""


class ProcessEngine(ManagedEngine):
    """`agentrl.types.Engine` over a `LocalEngine` in a process of its own.

    Constructing it only starts the process; whatever comes first waits until the model is loaded.

    Args:
        path: a Hugging Face folder.
        config: the engine's section.

    Attributes:
        role: the import path of what the process runs.
        worker: the process, as a worker of the current cluster.

    Raises:
        EngineError: the process could not be started at all.
    """

    role: ClassVar[str] = "agentrl.rollout.engines.local.engine_role:EngineRole"

    def __init__(self, path: Path, config: EngineConfig) -> None:
        self._path = Path(path)
        self.worker = cluster.current().spawn(
            Role(
                "engine",
                self.role,
                (self._path.absolute(), config),
                name="engine=local",
                resources=Resources(gpus=int(config.device == "cuda")),
                threads=config.threads,
            )
        )
        self._loading, self._starting = threading.Lock(), asyncio.Lock()
        self._loaded: Capabilities | None = None
        self._ready = False
        self._closed: EngineError | None = None
        self._version = 0

    # ---------------------------------------------------------------------------------------- starting

    @property
    def capabilities(self) -> Capabilities:
        """The promises of this engine; reading them waits until the process has loaded the model.

        Raises:
            ConfigError: the settings do not suit the model.
            EngineError: it died, or took too long.
        """
        with self._loading:
            if self._loaded is None:
                with self._engine_errors():
                    self.worker.wait_ready(START_SECONDS)
                    found: Capabilities = self.worker.run("capabilities", timeout=START_SECONDS)
                self._loaded = found
            return self._loaded

    @contextlib.contextmanager
    def _engine_errors(self) -> Iterator[None]:
        """The worker's errors as this engine's."""
        try:
            yield
        except DeadlineExceeded:
            raise
        except InfraError as error:
            if self._closed is not None:
                raise self._closed.with_traceback(None) from None
            raise error if isinstance(error, EngineError) else EngineError(str(error)) from None

    async def start(self) -> None:
        """Wait until the model is loaded; whatever comes first calls it, so it need not be called.

        Raises:
            ConfigError: the settings do not suit the model.
            EngineError: it died, or took too long.
        """
        if self._ready:
            return
        async with self._starting:
            if self._closed is not None:
                raise self._closed.with_traceback(None)  # many may raise it, and each would add its own
            await asyncio.to_thread(lambda: self.capabilities)
            self._ready = True

    # ------------------------------------------------------------------------------------------- calls

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`; see `agentrl.types.Engine.generate`."""
        if deadline is not None and deadline <= time.monotonic():
            raise DeadlineExceeded(f"request {request_id!r} came after its deadline")
        await self.start()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        items = self.worker.stream(
            "generate", request_id, list(input_ids), sampling, None, list(attached), timeout=left
        )
        with self._engine_errors():
            async with contextlib.aclosing(items):
                async for item in items:
                    yield item

    async def _call(self, method: str, *arguments: Any) -> Any:
        await self.start()
        with self._engine_errors():
            return await self.worker.call(method, *arguments, timeout=None)

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each token given those before it, at `temperature`; the first one's is 0.0."""
        found: list[float] = await self._call("score", list(input_ids), temperature)
        return found

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Load (Hugging Face name, tensor) pairs through a folder and call the result policy `version`.

        Raises:
            EngineError: a name is unknown or missing, or a shape differs; nothing was changed.
        """
        from agentrl.rollout.weights.buckets import ADAPTER, take_part
        from agentrl.rollout.weights.snapshot import write_part

        if (adapter := take_part(weights, ADAPTER)) is not None:
            with ScratchFolder() as scratch:
                await self.load(write_part(adapter, scratch / "adapter"), version)
            return
        with write_model(ModelFacts.read(self._path), weights) as folder:
            await self.load(folder, version)

    async def load(self, folder: Path, version: int) -> None:
        """Load a Hugging Face folder's weights and call them policy `version`; all of them, or an EngineError."""
        await self._call("load", Path(folder), version)
        self._version = version

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Stop generating, but not scoring. Returns when nothing is generated any more."""
        await self._call("pause", mode)

    async def resume(self) -> None:
        await self._call("resume")

    # ----------------------------------------------------------------------------------------- its state

    @property
    def node(self) -> str:  # type: ignore[override]
        """The node that it is on."""
        return self.worker.node

    def version(self) -> int:
        """The policy version that now generates."""
        return self._version

    @property
    def reach(self) -> EngineAddress:
        return ProcessReach(self.worker.address)

    @property
    def receiver(self) -> Receiver:
        return _FolderReceiver(self)

    async def checksum(self) -> str:
        """A digest of the model's own tensors, to compare engine with engine."""
        return str(await self._call("checksum"))

    async def health(self) -> Health:
        """Return whether the process answers, and how many requests it has."""
        error = self._closed or self.worker.poll()
        if error is not None:
            return Health(ok=False, detail=str(error), gone=True)
        if not self._ready:
            return Health(ok=False, detail="starting")
        try:
            found: Health = await self._call("health")
        except EngineError as error:
            return Health(ok=False, detail=str(error), gone=True)
        return found

    def kill(self) -> None:
        self.worker.kill()

    async def close(self) -> None:
        """End the process; open requests get an EngineError. Idempotent."""
        self._closed = self._closed or EngineError("the engine is closed")
        await self.worker.close()


@dataclass(frozen=True)
class ProcessReach:
    """`reach.Reach` of an engine's process."""

    address: Address

    async def open(self) -> EngineClient:
        return ReachedProcess(self.address)


class ReachedProcess:
    """`reach.EngineClient` over a connection of its own to an engine's process.

    Args:
        address: where the process listens.
    """

    def __init__(self, address: Address) -> None:
        self._link = Link(address)

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`."""
        try:
            connection = await self._link.connection()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            items = connection.stream(
                "generate", request_id, list(input_ids), sampling, None, list(attached), timeout=left
            )
            async with contextlib.aclosing(items):
                async for item in items:
                    yield item
        except (DeadlineExceeded, EngineError):
            raise
        except InfraError as error:
            raise EngineError(str(error)) from None

    def set_version(self, version: int) -> None:
        """Do nothing: the process knows its version."""

    async def close(self) -> None:
        await asyncio.to_thread(self._link.close)


class _FolderReceiver(EngineReceiver):
    """The process loads a folder by itself."""

    def __init__(self, engine: ProcessEngine) -> None:
        super().__init__(engine, engine.checksum)
        self._process = engine

    async def load_folder(self, folder: Path, commit: LoadCommit) -> None:
        await self._process.load(folder, commit.version)

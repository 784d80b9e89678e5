"""Weight transports as plug-ins: the settings of each, and how one is made. Importing it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentrl.config import EngineConfig, WeightsConfig
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.weights import TRANSPORTS, TransportPlugin

if TYPE_CHECKING:
    from agentrl.rollout.weights.transports import Transport


class DiskConfig(WeightsConfig):
    """The settings of `weights.transport=disk`."""

    only_with: ClassVar[Mapping[str, str]] = {"replicas": "delta"}
    transport: str = "disk"
    """The transport's name."""
    delta: bool = False
    """After the first publication only what changed is written."""
    dir: str | None = None
    """The folder in which engines find the weights; None is a temporary directory on this machine."""
    replicas: tuple[str, ...] = ()
    """The engine hosts' checkpoint folders, for weights.delta=true; with none engines load the trainer's own."""


class AutoConfig(DiskConfig):
    """The settings of `weights.transport=auto`: those of `disk`, which most engines use."""

    transport: str = "auto"
    """A transport's name or import path; auto: the one that suits the engine (inproc for engine=local, else disk)."""


class MemoryConfig(WeightsConfig):
    """Settings of transports that go through a CPU's memory."""

    ahead_mb: int = Field(default=2048, ge=0)
    """Megabytes of host memory that hold new weights while engines on a CPU still generate: what fits there takes no
    time of the pause but that of loading it. ipc holds them in shared memory, gloo in each engine."""

    @property
    def ahead_bytes(self) -> int:
        """`ahead_mb` in bytes."""
        return self.ahead_mb << 20


class DistributedConfig(MemoryConfig):
    """The settings of `weights.transport=distributed`."""

    transport: str = "distributed"
    """The transport's name."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """The library that broadcasts: auto is nccl (RCCL on AMD) with a GPU, else gloo."""
    host: str | None = None
    """An address of the trainer that engines can reach; None is the one by which the cluster's nodes know it."""


class IpcConfig(MemoryConfig):
    """The settings of `weights.transport=ipc`."""

    transport: str = "ipc"
    """The transport's name."""


class DiskPlugin(TransportPlugin):
    """Snapshots on a file system, or deltas."""

    settings = DiskConfig

    def make(self, config: DiskConfig, base: Path, engine: EngineConfig, ranks: int) -> Transport:
        from agentrl.rollout.weights.transports import DeltaTransport, DiskTransport

        directory = None if config.dir is None else Path(config.dir)
        if config.delta:
            return DeltaTransport(base, directory, config.bucket_bytes, [Path(path) for path in config.replicas])
        return DiskTransport(base, directory, config.bucket_bytes)


class DistributedPlugin(TransportPlugin):
    """Broadcasts into the engines' process group."""

    settings = DistributedConfig

    def make(self, config: DistributedConfig, base: Path, engine: EngineConfig, ranks: int) -> Transport:
        import torch

        from agentrl import cluster
        from agentrl.rollout.weights.transports import DistributedTransport

        automatic = "nccl" if torch.cuda.is_available() else "gloo"
        backend = automatic if config.backend == "auto" else config.backend
        host = config.host or cluster.current().host
        if backend == "gloo":
            return DistributedTransport(
                _in_memory(config), backend, host, config.timeout, ranks, ahead=config.ahead_bytes
            )
        return DistributedTransport(config.bucket_bytes, backend, host, config.timeout, ranks)


class IpcPlugin(TransportPlugin):
    """Handles of memory that trainer and engines share."""

    settings = IpcConfig

    def make(self, config: IpcConfig, base: Path, engine: EngineConfig, ranks: int) -> Transport:
        import torch

        from agentrl.rollout.weights.transports import IpcTransport

        if torch.cuda.is_available():
            return IpcTransport(config.bucket_bytes, ranks)
        return IpcTransport(_in_memory(config), ranks, config.ahead_bytes)


class InprocPlugin(TransportPlugin):
    """`Engine.publish`, with the tensors themselves."""

    def make(self, config: WeightsConfig, base: Path, engine: EngineConfig, ranks: int) -> Transport:
        from agentrl.rollout.weights.transports import InprocTransport

        return InprocTransport()

    def is_direct(self, config: WeightsConfig, engine: EngineConfig) -> bool:
        return True


class AutoPlugin(TransportPlugin):
    """The transport that the engine prefers; `disk` where deltas are configured."""

    settings = AutoConfig

    def make(self, config: AutoConfig, base: Path, engine: EngineConfig, ranks: int) -> Transport:
        plugin = self._find_preferred(config, engine)
        return plugin.make(_settings(config, plugin.settings), base, engine, ranks)

    def is_direct(self, config: AutoConfig, engine: EngineConfig) -> bool:
        plugin = self._find_preferred(config, engine)
        return plugin.is_direct(_settings(config, plugin.settings), engine)

    def _find_preferred(self, config: AutoConfig, engine: EngineConfig) -> TransportPlugin:
        return TRANSPORTS.find("disk" if config.delta else ENGINES.find(engine.name).transport(engine))


def _in_memory(config: WeightsConfig) -> int:
    """Bytes of a bucket in a CPU's memory: from 32 MB on malloc asks for new pages each time, which cost more."""
    return (config.bucket_mb or 31) << 20


def _settings(config: WeightsConfig, own: type[WeightsConfig]) -> Any:
    """A section converted to another transport's, with the values of the settings that both have."""
    if isinstance(config, own):
        return config
    return own(**{name: getattr(config, name) for name in config.model_fields_set & own.model_fields.keys()})


AUTO, DISK, DISTRIBUTED = AutoPlugin(), DiskPlugin(), DistributedPlugin()
INPROC, IPC = InprocPlugin(), IpcPlugin()

"""Publishing weights from a trainer to engines: named tensors, a transport, and a publisher that makes it atomic.

`make_publisher` puts together what the settings ask for. Everything here works on (Hugging Face name, tensor)
pairs and on `receiver.Receiver`s; which trainer and which engine stand at the ends makes no difference.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config import WEIGHTS, EngineConfig, WeightsConfig
from agentrl.registry import Registry
from agentrl.types import PauseMode

if TYPE_CHECKING:
    from agentrl.rollout.weights.buckets import Convert
    from agentrl.rollout.weights.publisher import Publisher
    from agentrl.rollout.weights.transports import Transport

__all__ = ["TRANSPORTS", "TransportPlugin", "conversion", "is_direct", "make_publisher"]


class TransportPlugin:
    """A weight transport as a plug-in. Importing it needs none of the transport's libraries.

    Attributes:
        settings: the class of its section of the configuration (`weights.*`).
    """

    settings: type[WeightsConfig] = WeightsConfig

    def make(self, config: Any, base: Path, engine: EngineConfig, ranks: int) -> Transport:
        """Build a transport.

        Args:
            config: an instance of `settings`.
            base: the model folder that engines serve.
            engine: the engines' section.
            ranks: worker ranks of one engine.
        """
        raise NotImplementedError

    def is_direct(self, config: Any, engine: EngineConfig) -> bool:
        """Return whether it only calls `Engine.publish`: a single engine in this process needs no transport then."""
        return False


_PLUGINS = "agentrl.rollout.weights.plugins"

TRANSPORTS: Registry[TransportPlugin] = Registry(
    "weight transport",
    "weights.transport",
    "agentrl.transports",
    {
        "auto": f"{_PLUGINS}:AUTO",
        "disk": f"{_PLUGINS}:DISK",
        "distributed": f"{_PLUGINS}:DISTRIBUTED",
        "inproc": f"{_PLUGINS}:INPROC",
        "ipc": f"{_PLUGINS}:IPC",
    },
    accept=lambda found: found if isinstance(found, TransportPlugin) else None,
    settings=WeightsConfig,
)


def is_direct(config: WeightsConfig, engine: EngineConfig) -> bool:
    """Return whether a single engine in this process gets its weights without a publisher."""
    config = WEIGHTS.build(config)
    return TRANSPORTS.find(config.transport).is_direct(config, engine)


def make_publisher(config: WeightsConfig, base: Path, engine: EngineConfig, ranks: int = 1) -> Publisher:
    """A publisher for engines of one kind.

    Args:
        config: the weights' section.
        base: the model folder that engines serve; where it is quantised, weights are quantised on the way.
        engine: the engines' section.
        ranks: worker ranks of one engine.
    """
    from agentrl.rollout.engines import ENGINES
    from agentrl.rollout.weights.publisher import Publisher

    config = WEIGHTS.build(config)
    own_precision = config.dtype in (None, engine.dtype)  # another one would be lost on what is added by the engine
    takes = ENGINES.find(engine.name).takes(engine) if own_precision else frozenset[str]()
    return Publisher(
        TRANSPORTS.find(config.transport).make(config, base, engine, ranks),
        base,
        mode=PauseMode(config.mode),
        transform=conversion(config, base, engine),
        verify=config.verify,
        timeout=config.timeout,
        keep=config.keep,
        limit=config.bucket_bytes,
        takes=takes,
    )


def conversion(config: WeightsConfig, base: Path, engine: EngineConfig) -> Convert:
    """Return the conversion of weights before they are sent: the precision, and the quantised form of the base's."""
    import torch

    from agentrl.rollout.weights.quantize import Fp8Blocks, converted

    dtype = getattr(torch, config.dtype or engine.dtype)
    return partial(converted, dtype=dtype, blocks=Fp8Blocks.from_folder(base))

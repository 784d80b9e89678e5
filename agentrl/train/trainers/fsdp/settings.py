"""The settings of `trainer=fsdp`."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from agentrl.errors import ConfigError
from agentrl.train.trainers.torch_trainer.settings import TorchConfig


class FsdpConfig(TorchConfig):
    """The settings of `trainer=fsdp`."""

    name: str = "fsdp"
    """The trainer's name."""
    ranks: PositiveInt | None = None
    """Processes that share the model, each on a GPU where there is one; None is every GPU there is, or 1."""
    timeout: PositiveFloat = 1800.0
    """Seconds that one call to the ranks may take before they are ended."""


def ranks_of(config: FsdpConfig, gpus: int) -> int:
    """Return the number of ranks."""
    ranks = config.ranks or max(gpus, 1)
    if gpus and ranks > gpus:
        raise ConfigError(
            f"trainer.ranks={ranks} needs as many GPUs, and there are {gpus} in all: trainer.ranks={gpus} is the most, "
            "engines that are not colocated aside"
        )
    return ranks

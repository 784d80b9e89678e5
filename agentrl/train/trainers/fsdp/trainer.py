"""The FSDP trainer: the `Trainer` protocol over ranks that share one transformers model.

This process holds no weights. Hugging Face folders and checkpoints are written by the ranks.
"""

from __future__ import annotations

from pathlib import Path

from torch.distributed.fsdp import FSDPModule

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import ConfigError
from agentrl.train.trainers.fsdp.settings import FsdpConfig, ranks_of
from agentrl.train.trainers.ranks.trainer import RankTrainer, gpus_of


class FsdpTrainer(RankTrainer):
    """The trainer of `trainer=fsdp`, with a critic and averaged weights.

    Raises:
        ConfigError: a setting can't be had with sharded weights, or there are too few GPUs; the message names it.
    """

    config: FsdpConfig

    def __init__(
        self,
        path: str | Path,
        config: FsdpConfig | None = None,
        algo: AlgoConfig | None = None,
        *,
        total_steps: int = 1,
        seed: int = 0,
        lora: LoraConfig | None = None,
    ) -> None:
        self.config = config or FsdpConfig()
        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise ConfigError("trainer=fsdp needs torch 2.13 or newer; use trainer=torch, or install it")
        super().__init__(
            Path(path),
            self.config,
            self.make_algorithm(algo or AlgoConfig()),
            total_steps=total_steps,
            seed=seed,
            builder="agentrl.train.trainers.fsdp.rank:FsdpBuilder",
            loaded="agentrl.train.trainers.fsdp.rank",
            count=ranks_of(self.config, gpus_of(self.config)),
            timeout=self.config.timeout,
            lora=lora,
        )

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder, as the torch trainer does; rank 0 gathers all weights in the CPU's memory."""
        self.ranks.call("export", str(Path(path).absolute()))

"""`trainer=fsdp` as a plug-in; `agentrl.train.trainers.fsdp.trainer` is the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from agentrl.train.algorithms.base import Algorithm
from agentrl.train.plan.memory import Numbers, Split
from agentrl.train.trainers.fsdp.settings import FsdpConfig, ranks_of
from agentrl.train.trainers.plugin import TrainerFactory
from agentrl.train.trainers.torch_trainer.plugin import TorchPlugin
from agentrl.train.trainers.torch_trainer.settings import TorchConfig


class FsdpPlugin(TorchPlugin):
    """The torch trainer over several processes; its architecture is tested as that of `trainer=torch`."""

    divergences: Literal["none", "top_k", "whole", "own"] = "whole"
    settings = FsdpConfig
    has_ranks = True
    own_critic = False
    trains_modules = True
    trains_experts = True
    packs_base = False

    def factory(self) -> TrainerFactory:
        from agentrl.train.trainers.fsdp.trainer import FsdpTrainer

        return FsdpTrainer

    def split(self, config: FsdpConfig, model: Any, gpus: int) -> Split:
        """Data-parallel ranks, on every GPU there is unless `trainer.ranks` says otherwise."""
        return Split(data=ranks_of(config, gpus))

    def numbers(self, config: TorchConfig, algorithm: Algorithm) -> Numbers:
        return replace(super().numbers(config, algorithm), trainer="fsdp")


TRAINER = FsdpPlugin()

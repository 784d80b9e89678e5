"""`trainer=torch` as a plug-in; `agentrl.train.trainers.torch_trainer.trainer` is the trainer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agentrl.train.algorithms.base import Algorithm
from agentrl.train.plan.memory import Numbers
from agentrl.train.trainers.plugin import TrainerFactory, TrainerPlugin
from agentrl.train.trainers.torch_trainer.settings import TorchConfig


class TorchPlugin(TrainerPlugin):
    """The trainer in this process."""

    divergences: Literal["none", "top_k", "whole", "own"] = "own"
    settings = TorchConfig
    takes_minibatches = True
    trains_adapters = True
    trains_modules = True
    trains_experts = True
    packs_base = True
    computes_supports = True
    trains_scores = True
    joint_critic = True
    untrained = "kept"

    @property
    def trains_images(self) -> Collection[str]:
        from agentrl.models.vision_families import FAMILIES

        return FAMILIES.keys()

    def factory(self) -> TrainerFactory:
        from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

        return TorchTrainer

    def proves(self, config: TorchConfig) -> bool:
        return config.proof

    def prove(self, config: TorchConfig, path: Path, model: str, context: int | None) -> None:
        """Test the architecture on the run's device and in its precision."""
        from agentrl.models.devices import torch_device
        from agentrl.train.trainers import proof

        device = torch_device(config.device, "trainer.device")
        proof.require(path, model, device, "torch", dtype=config.dtype, context=context)

    def numbers(self, config: TorchConfig, algorithm: Algorithm) -> Numbers:
        """As the settings have it: an average, activations that are computed again, moments in the CPU's memory."""
        return replace(
            super().numbers(config, algorithm),
            recompute=config.recompute == "full",
            average=config.average_decay is not None,
            offloaded=config.offload_optimizer,
        )


TRAINER = TorchPlugin()

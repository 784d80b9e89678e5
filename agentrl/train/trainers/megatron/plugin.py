"""`trainer=megatron` as a plug-in; `agentrl.train.trainers.megatron.trainer` is the trainer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.base import Algorithm
from agentrl.train.plan.memory import Numbers, Split
from agentrl.train.trainers.base import Trainer
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.settings import TOWERS, MegatronConfig
from agentrl.train.trainers.plugin import TrainerFactory, TrainerPlugin


class MegatronPlugin(TrainerPlugin):
    """The trainer on Megatron-core's ranks."""

    settings = MegatronConfig
    takes_minibatches = True
    trains_adapters = True
    trains_modules = True
    trains_experts = True
    has_ranks = True
    computes_supports = True
    trains_scores = True
    own_critic = False
    joint_critic = True
    divergences: Literal["none", "top_k", "whole", "own"] = "whole"
    untrained = "dropped"

    @property
    def trains_images(self) -> Collection[str]:
        return TOWERS

    def factory(self) -> TrainerFactory:
        from agentrl.train.trainers.megatron.trainer import MegatronTrainer

        return MegatronTrainer

    def make(
        self, path: Path, config: MegatronConfig, algo: AlgoConfig, *, prove: str | None = None, **more: Any
    ) -> Trainer:
        """Start the ranks; with `prove`, they test the architecture in their layout first."""
        if prove is not None and config.proof:
            from agentrl.train.trainers import proof

            more["first"] = proof.prove_on_ranks(path, prove)
        return super().make(path, config, algo, **more)

    def proves(self, config: MegatronConfig) -> bool:
        return config.proof

    def prove(self, config: MegatronConfig, path: Path, model: str, context: int | None) -> None:
        """Only check that a family supports the model: the ranks test the architecture when they start."""
        from agentrl.train.trainers import proof

        proof.require_family(path, model, config.family)

    def replays_experts(self, config: MegatronConfig) -> bool:
        return config.moe.routing_replay == "rollout"

    def split(self, config: MegatronConfig, model: Any, gpus: int) -> Split:
        layout = layout_of(config, model, gpus)
        return Split(layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data)

    def numbers(self, config: MegatronConfig, algorithm: Algorithm) -> Numbers:
        numbers = super().numbers(config, algorithm)
        return replace(
            numbers,
            trainer="megatron",
            recompute=config.recompute == "full",
            reference=numbers.reference and config.reference == "copy",
            distributed=config.shares_state,
            offloaded=config.offload_optimizer,
        )


TRAINER = MegatronPlugin()

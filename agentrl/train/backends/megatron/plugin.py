"""`trainer=megatron` as a plug-in; `agentrl.train.backends.megatron.trainer` is the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config import AlgoConfig
from agentrl.train.backends.base import Trainer
from agentrl.train.backends.megatron.settings import MegatronConfig
from agentrl.train.backends.plugin import TrainerFactory, TrainerPlugin


class MegatronPlugin(TrainerPlugin):
    """The trainer on Megatron-core's ranks."""

    settings = MegatronConfig
    takes_minibatches = True
    has_ranks = True

    def factory(self) -> TrainerFactory:
        """Import torch; Megatron-core itself is imported by the ranks."""
        from agentrl.train.backends.megatron.trainer import MegatronTrainer

        return MegatronTrainer

    def make(
        self, path: Path, config: MegatronConfig, algo: AlgoConfig, *, prove: str | None = None, **more: Any
    ) -> Trainer:
        """Start the ranks; with `prove`, they test the architecture in their layout first."""
        if prove is not None and config.proof:
            from agentrl.train.backends import proof

            more["first"] = proof.prove_on_ranks(path, prove)
        return super().make(path, config, algo, **more)

    def proves(self, config: MegatronConfig) -> bool:
        """Return True unless `trainer.proof=false`."""
        return config.proof

    def prove(self, config: MegatronConfig, path: Path, model: str, context: int | None) -> None:
        """Only check that a family supports the model: the ranks test the architecture when they start."""
        from agentrl.train.backends import proof

        proof.require_family(path, model, config.family)

    def replays_experts(self, config: MegatronConfig) -> bool:
        """Return True with `trainer.moe.replay=rollout`."""
        return config.moe.replay == "rollout"


TRAINER = MegatronPlugin()

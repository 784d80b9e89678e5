"""`trainer=fsdp` as a plug-in; `agentrl.train.backends.fsdp.trainer` is the trainer."""

from __future__ import annotations

from agentrl.train.backends.fsdp.settings import FsdpConfig
from agentrl.train.backends.plugin import TrainerFactory
from agentrl.train.backends.torch_plugin import TorchPlugin


class FsdpPlugin(TorchPlugin):
    """The torch trainer over several processes; its architecture is tested as that of `trainer=torch`."""

    settings = FsdpConfig
    has_ranks = True

    def factory(self) -> TrainerFactory:
        """Import torch; transformers is imported by the ranks."""
        from agentrl.train.backends.fsdp.trainer import FsdpTrainer

        return FsdpTrainer


TRAINER = FsdpPlugin()

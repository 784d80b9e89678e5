"""Trainers as plug-ins: settings, a factory, and what can be checked before there is a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import missing_extra
from agentrl.models.devices import torch_device
from agentrl.train.backends.base import Trainer

TrainerFactory = Callable[..., Trainer]
"""Builds a trainer from a Hugging Face folder, its settings, the algorithm's, and `total_steps` and `seed`."""


class TrainerPlugin:
    """A trainer as a plug-in; modules hold one as `TRAINER`. Importing it needs none of the trainer's libraries.

    Attributes:
        settings: the class of its section of the configuration (`trainer.*`).
        has_ranks: whether it starts ranks, which on a cluster are workers of their own.
        takes_minibatches: whether its steps make an update for each of a batch's minibatches (`Forest.updates`).
    """

    settings: type[TrainerConfig] = TrainerConfig
    has_ranks: bool = False
    takes_minibatches: bool = False

    def factory(self) -> TrainerFactory:
        """The trainer's class, with its libraries imported.

        Raises:
            ModuleNotFoundError: one of them is not installed.
        """
        raise NotImplementedError

    def make(self, path: Path, config: Any, algo: AlgoConfig, *, prove: str | None = None, **more: Any) -> Trainer:
        """Build a trainer on the weights of a Hugging Face folder.

        Args:
            path: the folder.
            config: an instance of `settings`.
            algo: the first phase's algorithm.
            prove: the model's name, for trainers that test its architecture while they start; None: don't.
            more: `total_steps` and `seed`.

        Raises:
            MissingExtra: its libraries are not installed.
        """
        try:
            factory = self.factory()
        except ModuleNotFoundError as error:
            raise missing_extra(str(error.name), "train") from error
        return factory(path, config, algo, **more)

    def check(self, config: Any) -> None:
        """Refuse settings that no trainer can be made from, before there is a model.

        Raises:
            ConfigError: there is no such device.
        """
        if config.device == "cuda":
            torch_device(config.device, "trainer.device")

    def proves(self, config: Any) -> bool:
        """Return whether architecture and loaded weights are compared with transformers' outputs before training."""
        return False

    def prove(self, config: Any, path: Path, model: str, context: int | None) -> None:
        """Refuse a model whose architecture would be trained wrong, before a trainer is made.

        Args:
            config: an instance of `settings`, for which `proves` is true.
            path: the model's Hugging Face folder.
            model: how the user named it.
            context: tokens of the longest path; None is the model's own limit.

        Raises:
            ConfigError: with the numbers.
        """

    def replays_experts(self, config: Any) -> bool:
        """Return whether training needs the routed experts that the engine recorded."""
        return False


class FactoryPlugin(TrainerPlugin):
    """A class or function that makes a trainer, used as a plug-in.

    Its attributes `settings` and `takes_minibatches` count, if it has them.
    """

    def __init__(self, factory: TrainerFactory) -> None:
        self._factory = factory
        self.settings = getattr(factory, "settings", TrainerConfig)
        self.takes_minibatches = getattr(factory, "takes_minibatches", False)

    def factory(self) -> TrainerFactory:
        """The class or function itself."""
        return self._factory

"""Trainers as plug-ins: settings, a factory, and what is known of it before there is a model.

A run asks the plug-in, and never which trainer it is: how its ranks share the model (`split`), what they keep on a
device (`memory`), what is checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import ConfigError, require_extra
from agentrl.train.algorithms.base import Algorithm
from agentrl.train.plan.memory import Numbers, Split, TrainerMemory, trainer_memory
from agentrl.train.plan.shapes import Shape
from agentrl.train.trainers.base import Trainer

TrainerFactory = Callable[..., Trainer]
"""Builds a trainer from a Hugging Face folder, its settings, the algorithm's, and `total_steps` and `seed`."""


class TrainerPlugin:
    """A trainer as a plug-in; modules hold one as `TRAINER`. Importing it needs none of the trainer's libraries.

    Attributes:
        settings: the class of its section of the configuration (`trainer.*`).
        has_ranks: whether it starts ranks, which on a cluster are workers of their own; `split` says how many.
        takes_minibatches: whether its steps make an update for each of a batch's minibatches (`Forest.updates`).
        trains_adapters: whether it trains an adapter in the model's place (`lora.rank`); see `AdapterTrainer`.
        trains_modules: whether modules may be trained in full beside an adapter (`lora.full`).
        trains_experts: whether an adapter may be on experts that are one tensor (`lora.experts`).
        packs_base: whether it holds the base under an adapter in four bits (`lora.quantize`).
        computes_supports: whether its log-probabilities are over the sets that tokens were drawn from
            (`forest.distribution`); else an engine records none, and only turns of full support are trained.
        trains_scores: whether it trains score models (`Needs.head`).
        own_critic: whether a critic may have a trunk of its own beside the policy (`algo.value_trunk=own`).
        joint_critic: whether its critic may read joint paths (`algo.value_path=joint`); see `JointCritic`.
        divergences: which divergences from a teacher it computes: none, those over the teacher's `top_k`, also over the
            `whole` vocabulary (`set_teacher` gives it the teacher's head), or also from its `own` policy as it was.
        untrained: what becomes of a model's tensors that it does not load (those of images, say): they are `kept` in
            what it exports, or `dropped`; None: that can't be told.
    """

    settings: type[TrainerConfig] = TrainerConfig
    has_ranks: bool = False
    takes_minibatches: bool = False
    trains_adapters: bool = False
    trains_modules: bool = False
    trains_experts: bool = False
    packs_base: bool = False
    computes_supports: bool = False
    trains_scores: bool = False
    own_critic: bool = True
    joint_critic: bool = False
    divergences: Literal["none", "top_k", "whole", "own"] = "none"
    untrained: Literal["kept", "dropped"] | None = None

    @property
    def trains_images(self) -> Collection[str]:
        """The `model_type`s of models that see (`models.vision`) which it trains."""
        return ()

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
            more: `total_steps` and `seed`; with `trains_adapters`, `lora` where an adapter is trained.

        Raises:
            MissingExtra: its libraries are not installed.
        """
        with require_extra("train"):
            factory = self.factory()
        return factory(path, config, algo, **more)

    def check(self, config: Any) -> None:
        """Refuse settings that no trainer can be made from, before there is a model.

        Raises:
            ConfigError: there is no such device.
        """
        if config.device == "cuda":
            from agentrl.models.devices import torch_device

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

    def split(self, config: Any, model: Any, gpus: int) -> Split:
        """Return how the trainer's ranks share the model; a run takes a place for each rank. By default there is one.

        Args:
            config: an instance of `settings`.
            model: the model's Hugging Face settings, as attributes.
            gpus: how many there are for it; 0 where it computes on CPUs.

        Raises:
            ConfigError: the model can't be shared like that.
        """
        return Split()

    def numbers(self, config: Any, algorithm: Algorithm) -> Numbers:
        """Return how the trainer keeps its numbers, from which `memory` and the time of a step are estimated.

        By default as `trainer=torch` does: weights, gradients and AdamW's two moments in float32 on each device.

        Raises:
            ConfigError: the algorithm needs a model that this trainer has no place for.
        """
        needs = algorithm.needs
        own_critic = needs.critic and algorithm.critic_config.value_trunk == "own"
        if own_critic and not self.own_critic:
            raise ConfigError(
                f"algo.value_trunk=own: trainer={config.name} has one model, whose hidden states its critic reads; use "
                "algo.value_trunk=policy, or trainer=torch"
            )
        return Numbers(
            "torch",
            config.dtype,
            critic=own_critic,
            reward_model=needs.reward_model,
            reference=bool(algorithm.config.kl_coef) or needs.reference or needs.reward_model,
            distributed=False,
        )

    def memory(self, config: Any, algorithm: Algorithm, shape: Shape, split: Split) -> TrainerMemory:
        """Bytes on one of its devices, the fullest one; by default what follows from `numbers`.

        Args:
            config: an instance of `settings`.
            algorithm: what is trained with.
            shape: the model's.
            split: how ranks share it.
        """
        return trainer_memory(shape, split, self.numbers(config, algorithm), config.token_budget)


class TrainerFactoryPlugin(TrainerPlugin):
    """A class or function that makes a trainer, used as a plug-in.

    Its attributes `settings`, `takes_minibatches`, `trains_adapters` and `trains_scores` count, if it has them. One
    with ranks needs a `TrainerPlugin` of its own, which says how they share the model.
    """

    def __init__(self, factory: TrainerFactory) -> None:
        self._factory = factory
        self.settings = getattr(factory, "settings", TrainerConfig)
        for ability in ("takes_minibatches", "trains_adapters", "computes_supports", "trains_scores", "joint_critic"):
            setattr(self, ability, getattr(factory, ability, False))

    def factory(self) -> TrainerFactory:
        return self._factory

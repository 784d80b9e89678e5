"""Trainers by name or import path."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.config import AlgoConfig, LoraConfig, TrainerConfig
from agentrl.config.lora import INSTALL_QUANTISER
from agentrl.errors import ConfigError, MissingExtra
from agentrl.registry import Registry
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.trainers.base import (
    AdapterTrainer,
    Averager,
    BaseSharing,
    Computing,
    Critic,
    JointCritic,
    MemoryReleasing,
    Rewarder,
    ShareableTrainer,
    Trainer,
    TrainerAccess,
    TrainerConnection,
)
from agentrl.train.trainers.plugin import TrainerFactoryPlugin, TrainerPlugin


def _accept(found: Any) -> TrainerPlugin | None:
    if isinstance(found, TrainerPlugin):
        return found
    return TrainerFactoryPlugin(found) if callable(found) else None


TRAINERS: Registry[TrainerPlugin] = Registry(
    "trainer",
    "trainer",
    "agentrl.trainers",
    {
        "fsdp": "agentrl.train.trainers.fsdp.plugin:TRAINER",
        "torch": "agentrl.train.trainers.torch_trainer.plugin:TRAINER",
        "megatron": "agentrl.train.trainers.megatron.plugin:TRAINER",
    },
    accept=_accept,
    settings=TrainerConfig,
)


def make_trainer(
    path: str | Path,
    config: TrainerConfig,
    algo: AlgoConfig,
    *,
    total_steps: int = 1,
    seed: int = 0,
    prove: str | None = None,
    lora: LoraConfig | None = None,
) -> Trainer:
    """The trainer that the configuration names, on the weights in a Hugging Face folder.

    Args:
        path: the folder.
        config: the trainer's settings.
        algo: the first phase's algorithm.
        total_steps: the first phase's length.
        seed: of the trainer's random numbers.
        prove: the model's name, for trainers that test its architecture while they start; None: no test.
        lora: the adapter that is trained; None, or without a rank: the whole model is.

    Raises:
        UnknownName: no trainer of that name, and nothing at that import path.
        MissingExtra: the trainer's libraries are not installed.
        ConfigError: the algorithm needs a critic, a reward model or minibatches, and this trainer has none; or it
            trains no adapters.
    """
    algorithm = make_algorithm(algo)
    plugin, needs = suitable(config, algorithm, lora), algorithm.needs
    more = {"lora": lora} if lora is not None and lora.active else {}
    trainer = plugin.make(Path(path), config, algo, prove=prove, total_steps=total_steps, seed=seed, **more)
    for needed, kind, what in ((needs.critic, Critic, "critic"), (needs.reward_model, Rewarder, "reward model")):
        if needed and not isinstance(trainer, kind):
            trainer.close()
            raise missing_model(config, algo, what)
    return trainer


def missing_model(config: TrainerConfig, algo: AlgoConfig, what: str) -> ConfigError:
    """The error of an algorithm that needs a model beside the policy, "critic" say, which the trainer does not have."""
    return ConfigError(f"algo={algo.name} needs a {what}, which trainer={config.name} does not have")


def check_trainer(config: TrainerConfig, algorithm: Algorithm, lora: LoraConfig | None = None) -> None:
    """Refuse settings that no trainer can be made from, before there is a model."""
    suitable(config, algorithm, lora).check(config)


def suitable(config: TrainerConfig, algorithm: Algorithm, lora: LoraConfig | None) -> TrainerPlugin:
    """Return the trainer's plug-in, where its steps can be as the settings of the algorithm and the adapter say."""
    plugin, algo = TRAINERS.find(config.name), algorithm.config
    if algo.minibatches > 1 and not plugin.takes_minibatches:
        raise ConfigError(
            f"algo.minibatches={algo.minibatches}: trainer={config.name} makes one update with a batch; use "
            "algo.minibatches=1 (one that splits it by `Forest.updates` says so by takes_minibatches)"
        )
    if algorithm.reads_joint_paths and not plugin.joint_critic:
        names = _list_those("joint_critic")
        raise ConfigError(
            f"algo.value_path=joint: the critic of trainer={config.name} reads the policy's paths alone; use "
            f"algo.value_path=agent, or one of {names}"
        )
    scores = algorithm.needs.head is not None
    if scores and not plugin.trains_scores:
        names = _list_those("trains_scores")
        raise ConfigError(f"algo={algo.name}: trainer={config.name} trains no score models; those that do: {names}")
    if lora is not None and lora.active:
        if scores:
            raise ConfigError(f"lora: algo={algo.name} trains whole models: a score model has a head of its own")
        if not plugin.trains_adapters:
            names = _list_those("trains_adapters")
            raise ConfigError(f"lora: trainer={config.name} trains no adapters yet; those that do: {names}")
        for more, kind in zip(beyond_layers(lora), ("trains_modules", "trains_experts"), strict=True):
            if more and not getattr(plugin, kind):
                names = _list_those(kind)
                raise ConfigError(
                    f"{more}: trainer={config.name} trains linear layers alone; those that train more: {names}"
                )
        if lora.quantize != "none":
            _require_packing(config, plugin, lora)
        if (optimizer := getattr(config, "optimizer", "adamw")) not in ("adamw", "adam"):
            raise ConfigError(f"lora: trainer.optimizer={optimizer}: an adapter is trained by AdamW alone")
    return plugin


def _list_those(ability: str) -> str:
    return ", ".join(name for name, one in TRAINERS.available().items() if getattr(one, ability))


def _require_packing(config: TrainerConfig, plugin: TrainerPlugin, lora: LoraConfig) -> None:
    if not plugin.packs_base:
        names = _list_those("packs_base")
        why = ": its ranks divide weights, and four bits have a scale for each 64 values" if plugin.has_ranks else ""
        raise ConfigError(
            f"lora.quantize={lora.quantize}: trainer={config.name} holds no base in four bits{why}; use "
            f"lora.quantize=none, or trainer={names}"
        )
    if find_spec("bitsandbytes") is None:
        raise MissingExtra(
            f"lora.quantize={lora.quantize} needs bitsandbytes, which is not installed: {INSTALL_QUANTISER}"
        )


def beyond_layers(lora: LoraConfig) -> tuple[str, str]:
    """Return the settings by which an adapter has modules in full, and matrices of experts; '' where it has none."""
    full, experts = lora.full, lora.experts
    if lora.adapter is not None:
        from agentrl.models.adapters import beside_layers

        full, stacked = beside_layers(Path(lora.adapter))
        experts = bool(stacked)
    return f"lora.full={list(full)}" if full else "", "lora.experts=true" if experts else ""


__all__ = [
    "TRAINERS",
    "AdapterTrainer",
    "Averager",
    "BaseSharing",
    "Computing",
    "Critic",
    "JointCritic",
    "ShareableTrainer",
    "Rewarder",
    "MemoryReleasing",
    "Trainer",
    "TrainerAccess",
    "TrainerConnection",
    "TrainerPlugin",
    "check_trainer",
    "make_trainer",
    "suitable",
    "missing_model",
    "beyond_layers",
]

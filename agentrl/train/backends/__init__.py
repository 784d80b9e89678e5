"""Trainers by name or import path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import ConfigError, missing_extra, unknown_name
from agentrl.imports import load
from agentrl.models.devices import torch_device
from agentrl.train.algorithms import get_algorithm
from agentrl.train.backends.base import Critic, Trainer

_KNOWN = {
    "torch": "agentrl.train.backends.torch:TorchTrainer",
    "megatron": "agentrl.train.backends.megatron.trainer:MegatronTrainer",
}


def make_trainer(
    path: str | Path,
    config: TrainerConfig,
    algo: AlgoConfig,
    *,
    total_steps: int = 1,
    seed: int = 0,
    first: Callable[[Any], None] | None = None,
) -> Trainer:
    """The trainer that the configuration names, on the weights in a Hugging Face folder.

    Args:
        path: the folder.
        config: the trainer's settings.
        algo: the first phase's algorithm.
        total_steps: the first phase's length.
        seed: of what the trainer draws.
        first: what ranks do before they build the model (megatron).

    Raises:
        UnknownName: no trainer of that name, and nothing at that import path.
        MissingExtra: the trainer's libraries are not installed.
        ConfigError: the algorithm wants a critic, and this trainer has none.
    """
    more = {} if first is None else {"first": first}
    trainer = _factory(config.name)(path, config, algo, total_steps=total_steps, seed=seed, **more)
    if get_algorithm(algo.name).critic and not isinstance(trainer, Critic):
        trainer.close()
        raise ConfigError(f"algo={algo.name} wants a critic, which trainer={config.name} does not have")
    return trainer


def check_trainer(config: TrainerConfig) -> None:
    """Refuse settings that no trainer can be made from, before there is a model.

    Raises:
        UnknownName: no trainer of that name, and nothing at that import path.
        MissingExtra: the trainer's libraries are not installed.
        ConfigError: there is no such device.
    """
    if config.name not in _KNOWN:  # those import torch
        _factory(config.name)
    if config.device == "cuda":
        torch_device(config.device, "trainer.device")


def _factory(name: str) -> Callable[..., Trainer]:
    if name not in _KNOWN and ":" not in name:
        raise unknown_name("trainer", name, _KNOWN)
    try:
        factory: Callable[..., Trainer] = load(_KNOWN.get(name, name), "trainer")
    except ModuleNotFoundError as error:
        raise missing_extra(str(error.name), "train") from error
    if not callable(factory):
        raise ConfigError(f"trainer={name!r} is {factory!r}, which makes no trainer")
    return factory


__all__ = ["Critic", "Trainer", "check_trainer", "make_trainer"]

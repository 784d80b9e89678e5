"""Checks before a run of the trainers of all policies that learn: their settings, and how ranks share their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config import START, RunConfig
from agentrl.config.learners import named_as_given
from agentrl.models.folders import model_settings
from agentrl.models.registry import TINY, model_folder
from agentrl.train.algorithms import make_algorithm
from agentrl.train.plan.dry_run import model_shape
from agentrl.train.trainers import TRAINERS, check_trainer
from agentrl.types import MAIN


def check_trainers(config: RunConfig) -> None:
    """Refuse a policy's settings that no trainer can be made from.

    Raises:
        ConfigError, UnknownName, MissingExtra: see `check_trainer`, and `TrainerPlugin.numbers` for a critic's model.
    """
    for name in (MAIN, *config.learned):
        own = config if name == MAIN else config.of_policy(name)
        with named_as_given(config.policies, name):
            algorithm = make_algorithm(own.algo)
            check_trainer(own.trainer, algorithm, own.lora)
            TRAINERS.find(own.trainer.name).numbers(own.trainer, algorithm)


def check_layouts(config: RunConfig) -> None:
    """Refuse ranks that can't share a policy's model, whose folder is there, however many GPUs there are.

    Raises:
        ConfigError: naming the policy's setting, and the rule that does not hold.
    """
    for name in (MAIN, *config.learned):
        trainer = (config if name == MAIN else config.of_policy(name)).trainer
        plugin = TRAINERS.find(trainer.name)
        if plugin.has_ranks and (model := _model_of(config, name)) is not None:
            with named_as_given(config.policies, name):
                plugin.split(trainer, model, 0)


def _model_of(config: RunConfig, name: str) -> Any:
    """The settings of a policy's model; None where the run's own copy, from which it goes on, is not whole."""
    if name != MAIN and (own := config.policies[name].model).name != START:
        return model_settings(model_folder(own))
    if begun := config.resume or config.rerun:
        folder = Path(begun) / "model"
        return model_settings(folder) if (folder / "config.json").is_file() else None
    return model_shape(config.model) if config.model.name == TINY else model_settings(model_folder(config.model))

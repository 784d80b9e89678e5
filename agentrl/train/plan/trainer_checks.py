"""Checks before a run of the trainers of all policies that learn: their settings, and how ranks share their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config import START, ModelConfig, Policies
from agentrl.config.learners import Learners, named_as_given
from agentrl.models.folders import model_settings
from agentrl.models.registry import TINY, model_folder
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.plan.dry_run import model_shape
from agentrl.train.trainers import TRAINERS, check_trainer
from agentrl.types import MAIN


def check_trainers(learners: Learners, policies: Policies) -> dict[str, Algorithm]:
    """Return the policies' algorithms; refuse settings that no trainer can be made from."""
    found = {}
    for name, own in learners.items():
        with named_as_given(policies, name):
            found[name] = make_algorithm(own.algo)
            check_trainer(own.trainer, found[name], own.lora)
            TRAINERS.find(own.trainer.name).numbers(own.trainer, found[name])
    return found


def check_layouts(learners: Learners, policies: Policies, begun: str | None) -> None:
    """Refuse ranks that can't share a policy's model, whose folder is there, however many GPUs there are.

    Of a run that has `begun`, and is resumed or repeated, its own copy of the model counts.
    """
    for name, own in learners.items():
        plugin = TRAINERS.find(own.trainer.name)
        if not plugin.has_ranks:
            continue
        starts = name == MAIN or own.model.name == START
        model = _first_model(learners[MAIN].model, begun) if starts else model_settings(model_folder(own.model))
        if model is not None:
            with named_as_given(policies, name):
                plugin.split(own.trainer, model, 0)


def _first_model(model: ModelConfig, begun: str | None) -> Any:
    """The settings of the model that a run starts from; None where its own copy, from which it goes on, is damaged."""
    if begun:
        folder = Path(begun) / "model"
        return model_settings(folder) if (folder / "config.json").is_file() else None
    return model_shape(model) if model.name == TINY else model_settings(model_folder(model))

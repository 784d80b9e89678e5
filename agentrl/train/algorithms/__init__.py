"""Algorithms by name or import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError
from agentrl.registry import Registry, subclass_of
from agentrl.train.algorithms.base import Algorithm, Choice, Needs

_HERE = "agentrl.train.algorithms.advantages"

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    "algo",
    "agentrl.algorithms",
    {
        "coma": f"{_HERE}.teams.coma:Coma",
        "cpo": f"{_HERE}.preference:Cpo",
        "dapo": f"{_HERE}.dapo:Dapo",
        "distill": f"{_HERE}.distill:Distill",
        "dpo": f"{_HERE}.preference:Dpo",
        "dr_grpo": f"{_HERE}.grpo:DrGrpo",
        "gdpo": f"{_HERE}.gdpo:Gdpo",
        "gigpo": f"{_HERE}.gigpo:Gigpo",
        "grpo": f"{_HERE}.grpo:Grpo",
        "gspo": f"{_HERE}.gspo:Gspo",
        "kto": f"{_HERE}.kto:Kto",
        "maac": f"{_HERE}.teams.maac:Maac",
        "magrpo": f"{_HERE}.teams.magrpo:Magrpo",
        "maxrl": f"{_HERE}.maxrl:MaxRl",
        "opo": f"{_HERE}.opo:Opo",
        "orpo": f"{_HERE}.preference:Orpo",
        "pass_at_k": f"{_HERE}.pass_at_k:PassAtK",
        "ppo": f"{_HERE}.ppo:Ppo",
        "prime": f"{_HERE}.prime:Prime",
        "prm": f"{_HERE}.prm:StepLabelling",
        "rae": f"{_HERE}.rae:Rae",
        "raft_pp": f"{_HERE}.raft_pp:RaftPp",
        "reinforce": f"{_HERE}.reinforce:Reinforce",
        "reinforce_pp": f"{_HERE}.reinforce_pp:ReinforcePp",
        "reinforce_pp_baseline": f"{_HERE}.reinforce_pp:ReinforcePpBaseline",
        "remax": f"{_HERE}.remax:Remax",
        "reward_model": f"{_HERE}.reward_model:ScoreModelling",
        "rloo": f"{_HERE}.rloo:Rloo",
        "sft": f"{_HERE}.sft:Sft",
        "simpo": f"{_HERE}.preference:Simpo",
        "vine": f"{_HERE}.vine:Vine",
    },
    settings=AlgoConfig,
    default=subclass_of(Algorithm),
)


def register(algorithm: type[Algorithm]) -> None:
    """Make an algorithm known by its `name`; a later one of the same name replaces it."""
    ALGORITHMS.register(algorithm.name, algorithm)


def make_algorithm(config: AlgoConfig) -> Algorithm:
    """The algorithm that the settings name, with these settings; `Registry.find` describes the errors.

    Raises:
        ConfigError: besides, its corrections and its needs don't go together.
    """
    algorithm = ALGORITHMS.find(config.name)(config)
    _check_correction(algorithm)
    return algorithm


def _check_correction(algorithm: Algorithm) -> None:
    config, needs, name = algorithm.config.correction, algorithm.needs, algorithm.config.name
    if needs.sequence == "turn" and config.over_sessions:
        raise ConfigError(
            f"algo.correction has weights or masks over sessions, but the loss of algo={name} is over turns: use "
            "weight=turn or token and mask_turn or mask_token, or a loss over sessions"
        )


def algorithm_settings(fields: Mapping[str, Any]) -> AlgoConfig:
    """Settings from their fields, in the class that belongs to the algorithm which `name` names."""
    return ALGORITHMS.find(str(fields["name"])).settings.model_validate(fields)


__all__ = ["ALGORITHMS", "Algorithm", "Choice", "Needs", "algorithm_settings", "make_algorithm", "register"]

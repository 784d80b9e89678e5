"""Task samplers by name or import path: which task a group's number gets."""

from __future__ import annotations

from agentrl.config import SamplerConfig
from agentrl.registry import Registry, subclass_of
from agentrl.rollout.stream.samplers.base import Sampler

SAMPLERS: Registry[type[Sampler]] = Registry(
    "task sampler",
    "rollout.sampler",
    "agentrl.samplers",
    {
        "difficulty": "agentrl.rollout.stream.samplers.difficulty:Difficulty",
        "sequential": "agentrl.rollout.stream.samplers.base:Sequential",
        "shuffled": "agentrl.rollout.stream.samplers.base:Shuffled",
    },
    settings=SamplerConfig,
    default=subclass_of(Sampler),
)


def make_sampler(config: SamplerConfig, seed: int) -> Sampler:
    """The sampler that the settings name; `Registry.find` describes the errors."""
    return SAMPLERS.find(config.name)(config, seed)


__all__ = ["SAMPLERS", "Sampler", "make_sampler"]

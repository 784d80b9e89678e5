"""Tasks that the policy sometimes solves: those teach most.

A task's success is estimated from the scores of its past groups, as their exponentially weighted mean. For each number
a few tasks are chosen at random, and the one whose estimate p has the largest p(1 - p) is chosen: the variance of a
score of 0 or 1, and so, with a group's mean as the baseline, what its gradient grows with. A task without an estimate
counts as p = 1/2: what was not tried goes first.
"""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

from pydantic import Field, PositiveInt

from agentrl.config import SamplerConfig
from agentrl.errors import ConfigError
from agentrl.rollout.stream.samplers.base import Sampler
from agentrl.rollout.stream.seeds import derive
from agentrl.types import Group


class DifficultyConfig(SamplerConfig):
    """The settings of `rollout.sampler=difficulty`."""

    name: str = "difficulty"
    """The sampler's name."""
    candidates: PositiveInt = 4
    """Tasks that are chosen for each group; the one of the most uncertain success is chosen. 1 chooses by chance."""
    weight: float = Field(default=0.5, gt=0, le=1)
    """Weight of a task's newest group in its estimate."""


class Difficulty(Sampler):
    """Draws a few random tasks and takes the one whose success is the most uncertain."""

    settings = DifficultyConfig
    results = True
    config: DifficultyConfig

    def __init__(self, config: DifficultyConfig, seed: int) -> None:
        super().__init__(config, seed)
        self.success: dict[int, float] = {}

    def choose(self, number: int, count: int) -> int:
        """The best of the candidates; ConfigError where the tasks are a stream, which can't be chosen from."""
        if not count:
            raise ConfigError("rollout.sampler=difficulty chooses among tasks: tasks(split) has to return a sequence")
        generator = random.Random(derive(self.seed, "difficulty", number))
        candidates = [generator.randrange(count) for _ in range(self.config.candidates)]
        return max(candidates, key=self._variance)  # the first of equals

    def _variance(self, index: int) -> float:
        success = self.success.get(index, 0.5)
        return success * (1 - success)

    def see(self, index: int, group: Group) -> None:
        """Update the task's estimate; scores count as at least 0 and at most 1."""
        scores = [min(max(session.score or 0.0, 0.0), 1.0) for session in group.scored]
        if scores:
            known, weight = self.success.get(index), self.config.weight
            self.success[index] = fmean(scores) if known is None else known + weight * (fmean(scores) - known)

    def state(self) -> Any:
        return [[index, self.success[index]] for index in sorted(self.success)]

    def restore(self, state: Any) -> None:
        self.success = dict(state)

"""Samplers of tasks, and the two that need no results."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from agentrl.config import SamplerConfig
from agentrl.rollout.stream.seeds import derive
from agentrl.types import Group


class Sampler:
    """Chooses a task for each group's number.

    A number is chosen for once; the choice is part of the run's state, and so is what the sampler keeps (`state`). A
    resumed run therefore goes on with the same tasks. All randomness has to follow from `seed` and the number.

    Attributes:
        settings: the class of its section of the configuration.
        results: whether its choices depend on the results of groups (`see`).
    """

    settings: ClassVar[type[SamplerConfig]] = SamplerConfig
    results: ClassVar[bool] = False

    def __init__(self, config: SamplerConfig, seed: int) -> None:
        self.config, self.seed = config, seed

    def choose(self, number: int, count: int) -> int:
        """The index of the task that a group gets.

        Args:
            number: the group's. Numbers come in ascending order.
            count: how many tasks there are; 0 where that is not known (a stream of tasks, perhaps without end). Tasks
                of a stream are read in its order, so an index behind the last one means reading it anew.
        """
        raise NotImplementedError(f"{type(self).__name__} has no choose(number, count)")

    def see(self, index: int, group: Group) -> None:
        """A group of the task at `index` was trained on, or dropped for its rewards."""

    def state(self) -> Any:
        """Return what the sampler keeps from group to group, as JSON."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned."""


class Sequential(Sampler):
    """The tasks in their own order, again and again."""

    def choose(self, number: int, count: int) -> int:
        return number % count if count else number


class Shuffled(Sampler):
    """Each pass over the tasks in an order of its own, by the seed; a stream in its own order."""

    def __init__(self, config: SamplerConfig, seed: int) -> None:
        super().__init__(config, seed)
        self._epoch, self._order = -1, list[int]()

    def choose(self, number: int, count: int) -> int:
        if not count:
            return number
        epoch, place = divmod(number, count)
        if epoch != self._epoch or len(self._order) != count:
            self._epoch, self._order = epoch, list(range(count))
            random.Random(derive(self.seed, "epoch", epoch)).shuffle(self._order)
        return self._order[place]

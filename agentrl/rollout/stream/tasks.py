"""The task of each group: a sampler's choice for the group's number, the same in a resumed run.

Of a mixture of environments the weights choose one for each number, and a sampler of its own then chooses the task.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any, Protocol

from agentrl.config import SamplerConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.data.mixture import Mixture
from agentrl.errors import EnvError, InvalidInput
from agentrl.rollout.stream.samplers import Sampler, make_sampler
from agentrl.rollout.stream.samplers.base import Shuffled
from agentrl.rollout.stream.seeds import derive
from agentrl.types import Group, Task


class TaskStream:
    """The tasks of one split, numbered from 0 without end.

    Tasks are read one at a time, and none is kept: of a sequence by their index, so it may be larger than memory
    (a file that is read lazily, a database). Anything else is read in its own order (a generator may be endless) and
    begun anew where it ends.
    """

    def __init__(self, env: Env, split: str, seed: int, sampler: Sampler | None = None) -> None:
        self._env, self._split = env, split
        self.sampler = sampler or Shuffled(SamplerConfig(), seed)
        self._iterator = self._endless()
        self._read = 0
        source = calls.list_tasks(env, split)
        self._sequence = source if isinstance(source, Sequence) else ()

    def __len__(self) -> int:
        """The number of tasks, 0 where that is not known."""
        return len(self._sequence)

    def choose(self, number: int) -> Any:
        return self.sampler.choose(number, len(self))

    def at(self, choice: Any) -> Task:
        """The task of a choice.

        Raises:
            EnvError: the environment's code failed, or has no tasks.
            InvalidInput: a sequence has no task of that index.
        """
        index: int = choice
        if self._sequence:
            if not 0 <= index < len(self):
                name = type(self.sampler).__name__
                raise InvalidInput(f"the task sampler {name} chose task {index}; there are 0 to {len(self) - 1}")
            return calls.task(self._env, self._split, index, self._sequence[index])
        if index < self._read:
            self._iterator, self._read = self._endless(), 0
        (task,) = islice(self._iterator, index - self._read, index - self._read + 1)
        self._read = index + 1
        return task

    def see(self, choice: Any, group: Group) -> None:
        self.sampler.see(choice, group)

    def take(self, start: int, number: int) -> list[Task]:
        """Tasks `start` to `start + number`."""
        return [self.at(self.choose(index)) for index in range(start, start + number)]

    def once(self, number: int) -> list[Task]:
        """The first `number` tasks, or all where there are fewer: none twice."""
        if self._sequence:
            return self.take(0, min(number, len(self)))
        return list(islice(calls.tasks(self._env, self._split), number)) or self.take(0, number)

    def state(self) -> Any:
        return self.sampler.state()

    def restore(self, state: Any) -> None:
        self.sampler.restore(state)

    def _endless(self) -> Iterator[Task]:
        for restarted in count():
            task = None
            for task in calls.tasks(self._env, self._split):
                yield task
            if task is None:
                which = f"{type(self._env.unwrapped).__name__} has no tasks in the split {self._split!r}"
                raise EnvError(which if not restarted else f"{which} any more")


class MixedTasks:
    """The tasks of a mixture's parts: a choice is a part's name and the choice of its own sampler.

    Args:
        mixture: has the parts and their weights.
        split: of the parts' tasks.
        seed: the run's; it decides which numbers a part gets.
        sampler: the settings of the parts' samplers.
    """

    def __init__(self, mixture: Mixture, split: str, seed: int, sampler: SamplerConfig) -> None:
        self._seed, self._weights = seed, [part.weight for part in mixture.parts.values()]
        self._parts = {
            name: TaskStream(
                part.env, split, derive(seed, "mixture", name), make_sampler(sampler, derive(seed, "mixture", name))
            )
            for name, part in mixture.parts.items()
        }
        self._chosen: Counter[str] = Counter()

    def choose(self, number: int) -> Any:
        """A part, by weight, and its sampler's choice for how often it was chosen before."""
        generator = random.Random(derive(self._seed, "mixture", number))
        (name,) = generator.choices(list(self._parts), self._weights)
        self._chosen[name] += 1
        return [name, self._parts[name].choose(self._chosen[name] - 1)]

    def at(self, choice: Any) -> Task:
        name, inner = choice
        return self._parts[name].at(inner).of_part(name)

    def see(self, choice: Any, group: Group) -> None:
        name, inner = choice
        self._parts[name].see(inner, group)

    def state(self) -> Any:
        """The samplers' states, and how often each part was chosen, as JSON."""
        return {name: [self._chosen[name], part.state()] for name, part in self._parts.items()}

    def restore(self, state: Any) -> None:
        for name, (chosen, own) in state.items():
            self._chosen[name] = chosen
            self._parts[name].restore(own)


class Tasks(Protocol):
    """The tasks of a stream of groups."""

    def choose(self, number: int) -> Any:
        """Return the choice for a group's number, as JSON."""

    def at(self, choice: Any) -> Task:
        """The task of a choice."""

    def see(self, choice: Any, group: Group) -> None:
        """A group of that choice was trained on, or dropped for its rewards."""

    def state(self) -> Any:
        """State for a resumed run, as JSON."""

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned."""


def training_tasks(env: Env, split: str, seed: int, sampler: SamplerConfig) -> Tasks:
    """The tasks of an environment, chosen as the settings say."""
    if isinstance(env, Mixture):
        return MixedTasks(env, split, seed, sampler)
    return TaskStream(env, split, seed, make_sampler(sampler, seed))

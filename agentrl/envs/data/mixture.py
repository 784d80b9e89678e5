"""Several environments in one run: `env=mixture env.calculator=3 env.castle=1`.

A mixture has the tasks of its parts, by their weights, and plays none itself: `for_task` gives the part's own instance.
So each part keeps its tools, its limits and its rewards, and what is trained knows nothing of the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from agentrl.envs import calls
from agentrl.envs.added_tools import add_tools
from agentrl.envs.base import Env
from agentrl.envs.context import context_of
from agentrl.envs.registry import factory, find
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Task


@dataclass(frozen=True)
class _Part:
    """One environment of a mixture."""

    name: str
    weight: float
    make: Callable[[], Env]
    env: Env
    """An instance that plays no episode: for its tasks."""


class Mixture(Env):
    """Tasks of several environments, by weight."""

    def __init__(self, **parts: Any) -> None:
        """Make a mixture.

        Args:
            parts: by name, a weight, or settings: `weight` (1), `name` (the environment's, by default the part's own),
                and those of the environment's constructor.

        Raises:
            ConfigError: there is no part, a weight is not positive, or the parts have different agents or no split in
                common.
        """
        given = {name: _settings(name, value) for name, value in parts.items()}
        if not given:
            raise ConfigError("env=mixture needs environments with weights, as in env.calculator=3 env.castle=1")
        targets = tuple(find(settings["name"]) for settings in given.values())
        self.parts = _parts(orjson.dumps(given), targets)
        envs = {name: part.env for name, part in self.parts.items()}
        first = next(iter(envs.values()))
        self.agents = first.agents
        self.splits = tuple(split for split in first.splits if all(split in env.splits for env in envs.values()))
        if other := next((name for name, env in envs.items() if env.agents != first.agents), None):
            raise ConfigError(f"env.{other} has the agents {envs[other].agents}, and other parts have {first.agents}")
        if not self.splits:
            raise ConfigError(f"the environments {', '.join(envs)} have no split in common")

    def for_task(self, task: Task) -> Env:
        part = self.parts[task.environment].make()
        if (added := context_of(self).added_tools) is not None:
            add_tools(part, added.sources)
        return part

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """Refuse: a task is for an instance of its own environment."""
        raise EnvError(
            "a mixture plays no task itself, but for_task(task) does; wrap its parts in place of the mixture"
        )

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """The parts' tasks in turn, as often as their weights say, until every part has ended."""
        sources = {name: calls.tasks(part.env, split) for name, part in self.parts.items()}
        queue = [(1 / part.weight, place, name) for place, (name, part) in enumerate(self.parts.items())]
        heapq.heapify(queue)
        while queue:
            due, place, name = queue[0]
            task = next(sources[name], None)
            if task is None:
                heapq.heappop(queue)
                continue
            heapq.heapreplace(queue, (due + 1 / self.parts[name].weight, place, name))
            yield task.of_part(name)

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        for name, part in self.parts.items():
            if own := [task for task in tasks if task.environment == name]:
                await calls.prepare(part.make(), own, max(1, sessions * len(own) // len(tasks)))


def _settings(part: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = {"name": value}
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = {"weight": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"env.{part}={value!r}: a weight or settings are expected, as in env.{part}.weight=2")
    settings = {"name": part, "weight": 1.0, **value}
    weight = settings["weight"]
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not weight > 0:
        raise ConfigError(f"env.{part}.weight={weight!r} must be a number above 0")
    return settings


@lru_cache(maxsize=32)
def _parts(given: bytes, targets: tuple[object, ...]) -> dict[str, _Part]:
    """The parts of these settings; made once, since there is an instance of the mixture for each session."""
    parts = {}
    for name, settings in orjson.loads(given).items():
        kwargs = {key: value for key, value in settings.items() if key not in ("name", "weight")}
        try:
            make = factory(settings["name"], **kwargs)
        except ConfigError as error:
            raise ConfigError(f"env.{name}: {error}") from None
        parts[name] = _Part(name, float(settings["weight"]), make, make())
    return parts


def list_mixed(env: Env) -> dict[str, Env]:
    """The environments that an environment has tasks of, by name; itself, under '', where it is no mixture."""
    return {name: part.env for name, part in env.parts.items()} if isinstance(env, Mixture) else {"": env}

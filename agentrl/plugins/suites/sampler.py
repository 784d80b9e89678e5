"""The conformance suite of task samplers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.config import SamplerConfig
from agentrl.errors import ConfigError
from agentrl.plugins.suites.findings import configure, expect, find_problems, sampled_groups
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.rollout.stream.samplers import SAMPLERS, Sampler

COUNTS = (1, 2, 7, 100)
"""Of tasks."""
NUMBERS = 250
"""Of groups."""


@dataclass
class _Subject:
    """A sampler's class and settings."""

    kind: type[Sampler]
    config: SamplerConfig

    def make(self, seed: int = 3) -> Sampler:
        return self.kind(self.config, seed)


def choose(sampler: Sampler, numbers: range, count: int) -> list[int]:
    """Let it choose tasks for some groups, each of which it sees the result of."""
    [group] = sampled_groups(groups=1)
    chosen = []
    for number in numbers:
        chosen.append(sampler.choose(number, count))
        sampler.see(chosen[-1], group)
    return chosen


def every_choice_is_a_task(subject: _Subject) -> None:
    """It chooses an index below the number of tasks; of a stream without a length, one from 0 on, or it refuses it."""
    for count in COUNTS:
        wrong = [index for index in choose(subject.make(), range(NUMBERS), count) if index not in range(count)]
        expect(not wrong, f"of {count} tasks it chose number {wrong[:1]}")
    with suppress(ConfigError):
        expect(min(choose(subject.make(), range(20), 0)) >= 0, "of a stream it chose a negative number")


def choices_follow_from_the_seed(subject: _Subject) -> None:
    """Two samplers of one seed that saw the same choose the same."""
    for count in COUNTS:
        first, second = (choose(subject.make(), range(NUMBERS), count) for _ in range(2))
        expect(first == second, f"two samplers with the same seed chose differently of {count} tasks")


def a_resumed_run_goes_on(subject: _Subject) -> None:
    """After `restore` of its `state`, which is JSON, another one chooses as it would have gone on."""
    for half in (10, NUMBERS // 2):
        sampler, other = subject.make(), subject.make()
        choose(sampler, range(half), 7)
        other.restore(json.loads(json.dumps(sampler.state())))
        rest = range(half, NUMBERS)
        expect(
            choose(sampler, rest, 7) == choose(other, rest, 7), f"after group {half} a resumed one chose differently"
        )


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    every_choice_is_a_task,
    choices_follow_from_the_seed,
    a_resumed_run_goes_on,
)


def check_sampler(sampler: str | type[Sampler], **settings: Any) -> list[ContractFinding]:
    """Find promises that a task sampler does not keep.

    Args:
        sampler: a name, an import path, `file.py:CLASS`, or the class.
        settings: its own, as `rollout.sampler.*`.

    Returns:
        What is wrong; nothing, where the sampler keeps its contract.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it does not have these settings.
    """
    kind, config = configure(SAMPLERS, sampler, settings)
    return find_problems(CHECKS, _Subject(kind, config))

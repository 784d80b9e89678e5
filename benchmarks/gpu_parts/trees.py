"""A group of sessions as forests."""

from __future__ import annotations

import random

from agentrl.train.algorithms.advantages.grpo import Grpo
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.types import Group, Task
from benchmarks.workloads import workload


def forests(vocabulary: int, *, budget: int, seed: int = 0, **shape: int) -> list[Forest]:
    """A group's sessions, credited and packed; `shape` is `workload`'s."""
    sessions = workload(random.Random(seed), vocabulary, **shape)
    groups = [Group("g", Task(id="t"), sessions)]
    return pack(groups, Grpo().credit(groups), budget)

"""A group of sessions as forests."""

from __future__ import annotations

import random

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import get_algorithm
from agentrl.train.forest import Forest
from agentrl.train.packing import pack
from agentrl.types import Group, Task
from benchmarks.workloads import workload


def forests(vocabulary: int, *, budget: int, seed: int = 0, **shape: int) -> list[Forest]:
    """A group's sessions, credited and packed; `shape` is `workload`'s."""
    sessions = workload(random.Random(seed), vocabulary, **shape)
    groups = [Group("g", Task(id="t"), sessions)]
    return pack(groups, get_algorithm("grpo").credit(groups, AlgoConfig()), budget)

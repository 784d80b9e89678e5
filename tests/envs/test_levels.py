"""What holds for every level of every world that makes its own tasks."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from agentrl.envs.registry import make

WORLDS = {
    "data_analysis": 3,
    "document_search": 3,
    "math_tools": 5,
    "retail": 3,
    "terminal": 3,
    "text_adventure": 3,
    "web_forms": 3,
    "web_shop": 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_most_tasks_of_each_levels_evaluation_differ_in_more_than_their_ids(name: str) -> None:
    """Whole levels had a handful of tasks for `eval`: checks without `env.level` did not see it."""
    for level in range(1, WORLDS[name] + 1):
        tasks = [str(task.data) for task in islice(make(name, level=level).tasks("eval"), 100)]  # type: ignore[union-attr]
        copied = sum(number for number in Counter(tasks).values() if number > 1)
        assert copied <= len(tasks) / 2, level

"""The benchmark of authors' environments: which there are, that each can be demonstrated, and what it calls a rise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentrl.envs import calls
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import factory
from benchmarks import authors


def test_there_are_twenty_newcomers_environments_four_of_each_kind() -> None:
    kinds = Counter(address.partition(":")[0] for address in authors.environments("newcomers").values())
    assert kinds == {f"benchmarks.newcomers.{kind}": 4 for kind in authors.KINDS}


@pytest.mark.slow
@pytest.mark.parametrize("name", authors.environments("newcomers"))
async def test_a_newcomers_environment_has_two_splits_and_a_demonstrator_who_is_sometimes_rewarded(name: str) -> None:
    make = factory(authors.environments("newcomers")[name])
    trained, held_out = ({str(task.data) for task in calls.tasks(make(), split)} for split in ("train", "eval"))
    assert trained
    assert held_out
    assert not trained & held_out
    tasks = [task for task, _ in zip(calls.tasks(make(), "train"), range(40), strict=False)]
    assert any([(await play(make(), task, DEMONSTRATOR)).score for task in tasks])


@pytest.mark.slow
def test_a_run_is_measured_before_and_after_on_the_same_tasks(tmp_path: Path) -> None:
    sizes = {"steps": 1, "warm_start.steps": 2, "warm_start.demos": 8, "eval.tasks": 6, "rollout.groups_per_step": 2}
    found = authors.run("parity", authors.environments("newcomers")["parity"], 0, tmp_path, **sizes)
    assert found.low <= found.after - found.before <= found.high
    assert found.verdict in authors.summary([found])


@pytest.mark.slow
def test_the_command_that_a_run_proposes_is_run_and_measured_against_the_same_start(tmp_path: Path) -> None:
    sizes = {"steps": 1, "warm_start.steps": 2, "warm_start.demos": 8, "eval.tasks": 6, "rollout.groups_per_step": 2}
    found = authors.run("parity", authors.environments("newcomers")["parity"], 0, tmp_path, **sizes)
    assert found.proposal, found.said
    again = authors.follow(found)
    assert again.before == found.before
    assert again.low <= again.after - again.before <= again.high

"""`eval.weights=averaged` with environment workers: the evaluations of a run in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.store.store import Store
from tests.cluster.test_run import require_same, run
from tests.train.test_rerun import WORLD

SETTINGS: dict[str, Any] = {
    "steps": 2,
    "rollout": {"groups_per_step": 1, "group_size": 3, "turn_tokens": 8},
    "warm_start": {"steps": 0},
    "algo": {"lr": 1e-3},
    "eval": {"tasks": 2, "every": 1, "weights": "averaged"},
    "trainer": {"device": "cpu", "average_decay": 0.5},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment in which an untrained model learns, so that the average differs from the newest weights."""
    file = tmp_path_factory.mktemp("world") / "world.py"
    file.write_text(WORLD)
    return f"{file}:Dense"


@pytest.fixture(scope="module")
def here(world: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of the run in one process."""
    folder = tmp_path_factory.mktemp("runs") / "here"
    return folder, run(folder, env=world, **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "ray"])
def test_evaluations_of_the_average_in_workers_are_those_in_one_process_bit_for_bit(
    name: str, world: str, here: tuple[Path, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cluster: dict[str, Any] = {"name": name, "environments": 1}
    if name == "ray":
        cluster |= {"address": request.getfixturevalue("ray_nodes").address, "encrypted": True}
    there = run(tmp_path / "there", env=world, cluster=cluster, **SETTINGS)
    require_same(tmp_path / "there", there, here)
    for one, other in zip((there.before, there.after), (here[1].before, here[1].after), strict=True):
        assert one.metrics == other.metrics
    assert evaluated(tmp_path / "there") == evaluated(here[0])
    played = {policy for nodes, _ in evaluated(here[0]).values() for _, _, _, policy in nodes}
    assert played == {"averaged", None}
    assert workers_of(tmp_path / "there")
    assert not workers_of(here[0])


def evaluated(folder: Path) -> dict[str, Any]:
    with Store(folder / "sessions.db") as store:
        sessions = list(store.sessions(phase="eval"))
    return {
        s.id: ([(n.token_ids, n.logprobs, n.versions, n.policy if n.sampled else None) for n in s.nodes], s.rewards)
        for s in sessions
    }


def workers_of(folder: Path) -> list[Path]:
    return list((folder / "logs").glob("environments-*.log"))

"""A whole run on a cluster of two Ray nodes: the same run as in one process."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl.sessions.store import Store
from agentrl.train.display import Display

SETTINGS: dict[str, Any] = {
    "env": "calculator",
    "steps": 2,
    "seed": 3,
    "rollout": {"groups_per_step": 2, "group_size": 4},
    "warm_start": {"steps": 4, "demos": 16, "batch": 8},
    "eval": {"tasks": 2},
    "engine": {"device": "cpu"},
    "trainer": {"device": "cpu"},
}
TIMES = ("time/", "throughput/", "stream/", "mismatch/")


def run(folder: Path, **more: Any) -> Any:
    settings = SETTINGS | {"display": Display(Console(file=StringIO())), "run_dir": str(folder)} | more
    return agentrl.train(settings.pop("env"), **settings)


def tokens(folder: Path) -> dict[str, list[Any]]:
    with Store(folder / "sessions.db") as store:
        sessions = list(store.sessions(phase="train"))
    return {s.id: [(n.token_ids, n.logprobs, n.versions, s.reward) for n in s.nodes] for s in sessions}


def losses(result: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if not name.startswith(TIMES)} for row in result.metrics]


def weights(folder: Path) -> bytes:
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    return b"".join(file.read_bytes() for file in sorted(newest.rglob("*.safetensors")))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_two_ray_nodes_it_samples_learns_and_ends_as_in_one_process(ray_nodes: Any, tmp_path: Path) -> None:
    here = run(tmp_path / "local")
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 2, "place_timeout": 60.0}
    there = run(tmp_path / "ray", cluster=cluster, fleet={"engines": 2})
    assert tokens(tmp_path / "ray") == tokens(tmp_path / "local") != {}
    assert losses(there) == losses(here)
    assert weights(tmp_path / "ray") == weights(tmp_path / "local") != b""
    logs = {file.name for file in (tmp_path / "ray" / "logs").iterdir()}
    assert {"engine-0.log", "engine-1.log", "environments-0.log", "environments-1.log", "trainer-0.log"} <= logs

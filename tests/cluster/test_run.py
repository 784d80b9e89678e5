"""A whole run on a cluster of two Ray nodes: the same run as in one process."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import agentrl
from agentrl import faults
from agentrl.attachments import support
from agentrl.rollout.workers.engine_access import EngineAccess
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import trainability
from agentrl.train.display.console import Display
from agentrl.train.driver.learning import Learning
from agentrl.train.record import ledger, provenance
from agentrl.train.trainers.worker import WorkerTrainer
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_elastic import drain

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
NARROWED: dict[str, Any] = SETTINGS["rollout"] | {"top_p": 0.9, "repetition_penalty": 1.1}
"""Turns that carry what their tokens were drawn from."""
TIMES = ("time/", "throughput/", "stream/", "mismatch/", "count/infra_retries")


def run(folder: Path, **more: Any) -> Any:
    settings = SETTINGS | {"display": Display(Console(file=StringIO())), "run_dir": str(folder)} | more
    return agentrl.train(settings.pop("env"), **settings)


def tokens(folder: Path) -> dict[str, list[Any]]:
    with Store(folder / "sessions.db") as store:
        sessions = list(store.sessions(phase="train"))
    return {
        s.id: [(n.token_ids, n.logprobs, n.trainable, n.versions, n.attachments, s.reward) for n in s.nodes]
        for s in sessions
    }


def require_supports(folder: Path) -> None:
    """Every turn has its support, and all of its tokens can be trained."""
    with Store(folder / "sessions.db") as store:
        turns = [node for session in store.sessions(phase="train") for node in session.nodes if node.sampled]
    assert turns
    assert all(support.NAME in node.attachments and not any(trainability.list_lost(node)) for node in turns)


def losses(result: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if not name.startswith(TIMES)} for row in result.metrics]


def weights(folder: Path) -> bytes:
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    return b"".join(file.read_bytes() for file in sorted(newest.rglob("*.safetensors")))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of the run in one process."""
    folder = tmp_path_factory.mktemp("runs") / "local"
    result = run(folder, rollout=NARROWED)
    require_supports(folder)
    return folder, result


def require_same(folder: Path, result: Any, here: tuple[Path, Any]) -> None:
    assert tokens(folder) == tokens(here[0]) != {}
    assert losses(result) == losses(here[1])
    assert weights(folder) == weights(here[0]) != b""


def trained(folder: Path) -> list[tuple[int, Any]]:
    return [(step, found) for step, found in provenance.read(folder) if isinstance(found, provenance.Trained)]


def through_this_process(*_: Any, **__: Any) -> Any:
    raise AssertionError("they went through the driver")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_two_ray_nodes_it_samples_learns_and_ends_as_in_one_process_and_the_driver_reads_nothing_of_it(
    ray_nodes: Any,
    here: tuple[Path, Any],
    tmp_path: Path,
    loaded_sessions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WorkerTrainer, "weights", through_this_process)  # they go from the trainer to engines
    monkeypatch.setattr(EngineAccess, "generate", through_this_process)  # prompts and tokens: from workers to engines
    monkeypatch.setattr(Learning, "learn", through_this_process)  # here nothing is credited, packed or trained
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 2, "place_timeout": 60.0}
    there = run(tmp_path / "ray", cluster=cluster, fleet={"engines": 2}, rollout=NARROWED)
    assert not [name for name in loaded_sessions if name.startswith("train")]
    monkeypatch.undo()
    require_same(tmp_path / "ray", there, here)
    assert list(ledger.faults(tmp_path / "ray")) == []
    assert trained(tmp_path / "ray") == trained(here[0]) != []
    logs = {file.name for file in (tmp_path / "ray" / "logs").iterdir()}
    assert {"engine-0.log", "engine-1.log", "environments-0.log", "environments-1.log", "trainer-0.log"} <= logs
    assert "sessions-0.log" in logs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_that_are_killed_under_a_run_change_nothing_of_what_it_learns(
    ray_nodes: Any, here: tuple[Path, Any], tmp_path: Path
) -> None:
    points = {
        "groups.taken": "trainer.step",
        "trainer.step": "weights.publish",
    }
    nodes = [add_node(ray_nodes, num_cpus=2) for _ in points]
    planned: list[dict[str, Any]] = []
    for step, (point, node) in enumerate(zip(points, nodes, strict=True), 1):
        file = tmp_path / f"{point}.pid"
        file.write_text(str(node.all_processes["raylet"][0].process.pid))
        planned.append({"action": "kill", "point": point, "nth": step, "pid_file": str(file)})
        planned.append({"action": "delay", "point": points[point], "nth": step, "seconds": 3.0})
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump({"faults": planned}))
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 3}
    try:
        there = run(tmp_path / "ray", cluster=cluster, fleet={"engines": 2}, rollout=NARROWED, faults=str(plan))
    finally:
        for node in nodes:
            remove_node(ray_nodes, node)
    assert len(faults.list_fired(tmp_path / "ray")) == len(planned)
    require_same(tmp_path / "ray", there, here)
    assert list(ledger.faults(tmp_path / "ray")) == []


TEAM: dict[str, Any] = {
    "env": "examples/several_agents/demand.py:Demand",
    "agents": {"right": "other"},
    "policies": {"other": {"algo": {"name": "magrpo", "lr": 3e-3}, "engine": {"device": "cpu"}}},
    "algo": {"minibatches": 1, "warmup_steps": 0},
    "warm_start": {"steps": 10, "demos": 32},
}
"""Two policies that learn."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_policies_learn_on_ray_nodes_what_they_learn_in_one_process(ray_nodes: Any, tmp_path: Path) -> None:
    here = tmp_path / "local", run(tmp_path / "local", **TEAM)
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 1, "sessions": False, "place_timeout": 60.0}
    there = run(tmp_path / "ray", cluster=cluster, **TEAM)
    require_same(tmp_path / "ray", there, here)
    assert any(row["grad_norm"] for row in there.metrics) or any(row["other/grad_norm"] for row in there.metrics)
    assert trained(tmp_path / "ray") == trained(here[0]) != []
    logs = {file.name for file in (tmp_path / "ray" / "logs").iterdir()}
    assert {"trainer-0.log", "trainer-1.log", "engine-0.log", "engine-1.log", "environments-0.log"} <= logs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_policies_whose_trainers_have_ranks_learn_on_ray_nodes_as_here(ray_nodes: Any, tmp_path: Path) -> None:
    """Two ranks of FSDP for one, two tensor-parallel ones of Megatron for the other, an engine each."""
    other = TEAM["policies"]["other"] | {"trainer": {"name": "megatron", "tensor_parallel": 2}}
    team = TEAM | {"trainer": {"name": "fsdp", "ranks": 2}, "policies": {"other": other}}
    here = tmp_path / "local", run(tmp_path / "local", **team)
    there = run(tmp_path / "ray", cluster={"name": "ray", "address": ray_nodes.address}, **team)
    require_same(tmp_path / "ray", there, here)
    assert trained(tmp_path / "ray") == trained(here[0]) != []
    assert {f"trainer-{number}.log" for number in range(4)} <= {
        file.name for file in (tmp_path / "ray" / "logs").iterdir()
    }


class Drains(Display):
    """Has the trainer's node drained once the first step is done."""

    log: Path
    address: str
    ids: list[str]
    asked = False

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        super().step(metrics, curve)
        if "sessions/count" in metrics and not self.asked:  # not a step of the warm start
            self.asked = True
            self.ids.sort(key=lambda id: id[-6:] not in self.log.read_text().partition("\n")[0])
            drain(self.address, self.ids[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trainer_goes_on_elsewhere_when_its_node_is_drained_and_learns_the_same(
    ray_nodes: Any, here: tuple[Path, Any], tmp_path: Path
) -> None:
    """It stayed until the node was taken away, and died with it."""
    nodes = [add_node(ray_nodes, num_cpus=2, resources={"leaves": 1}) for _ in range(2)]
    shown = StringIO()
    display = Drains(Console(file=shown, width=500))
    display.log, display.address = tmp_path / "ray" / "logs" / "trainer-0.log", ray_nodes.address
    display.ids = [node.node_id for node in nodes]
    resources = {"trainer": {"custom": {"leaves": 1}}}
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 2, "resources": resources}
    trainer = SETTINGS["trainer"] | {"max_restarts": 0}
    try:
        there = run(
            tmp_path / "ray",
            cluster=cluster,
            fleet={"engines": 2},
            rollout=NARROWED,
            trainer=trainer,
            display=display,
        )
    finally:
        for node in nodes:
            remove_node(ray_nodes, node)
    require_same(tmp_path / "ray", there, here)
    assert "the trainer is moved: its node is drained" in shown.getvalue()
    moved = (tmp_path / "ray" / "logs" / "trainer-1.log").read_text().partition("\n")[0]
    assert display.ids[1][-6:] in moved
    assert list(ledger.faults(tmp_path / "ray")) == []

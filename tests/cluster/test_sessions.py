"""`cluster.sessions`: a process beside the driver stores, credits and trains on sessions, and the run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl import faults
from agentrl.sessions.store.store import Store
from agentrl.train.driver.learning import Learning
from agentrl.train.record import ledger, provenance
from tests.cluster.test_contract import SILENCE
from tests.cluster.test_run import here, require_same, run

__all__ = ["here"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def on_ray(ray_nodes: Any, folder: Path, **more: Any) -> Any:
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 2}
    return run(folder, cluster=cluster, fleet={"engines": 2}, **more)


def trained(folder: Path) -> list[tuple[int, Any]]:
    return [(step, found) for step, found in provenance.read(folder) if isinstance(found, provenance.Trained)]


def test_the_run_is_the_same_and_the_driver_reads_no_session_that_it_trains_on(
    ray_nodes: Any, here: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Learning, "learn", None)  # in this process nothing is credited, packed or trained
    read, load = list[str](), Store.load

    def noted(self: Store, session_id: str) -> Any:
        read.append(session_id)
        return load(self, session_id)

    monkeypatch.setattr(Store, "load", noted)
    there = on_ray(ray_nodes, tmp_path / "ray")
    assert not [name for name in read if name.startswith("train")]
    monkeypatch.undo()
    require_same(tmp_path / "ray", there, here)
    assert list(ledger.faults(tmp_path / "ray")) == []
    assert trained(tmp_path / "ray") == trained(here[0]) != []
    assert "sessions-0.log" in {file.name for file in (tmp_path / "ray" / "logs").iterdir()}


@pytest.mark.parametrize(("action", "point"), [("kill", "groups.taken"), ("stop", "trainer.step")])
def test_another_process_takes_its_place_where_it_is_killed_or_stopped(
    action: str, point: str, ray_nodes: Any, here: tuple[Path, Any], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    planned = [{"action": action, "target": "sessions", "point": point, "nth": 2, "seconds": 600.0}]
    plan.write_text(yaml.safe_dump({"faults": planned}))
    there = on_ray(ray_nodes, tmp_path / "ray", faults=str(plan), **{"cluster.silence_timeout": SILENCE})
    assert len(faults.fired(tmp_path / "ray")) == 1
    require_same(tmp_path / "ray", there, here)
    assert list(ledger.faults(tmp_path / "ray")) == []
    assert trained(tmp_path / "ray") == trained(here[0])


FILTER = """
def spoken(group):
    return all(node.message.text is not None for session in group.sessions for node in session.nodes)
"""


def critic(folder: Path) -> dict[str, Any]:
    """A critic's values, the trainer's log-probabilities, and proof of where tokens come from."""
    return {"algo": {"name": "ppo"}, "record_logprobs": True, "require_provenance": True}


def penalty(folder: Path) -> dict[str, Any]:
    """A KL penalty as a reward, groups that are trained on twice, and a filter that reads messages."""
    (folder / "filters.py").write_text(FILTER)
    rollout = {"groups_per_step": 2, "group_size": 4, "reuse": 0.5, "filter": f"{folder / 'filters.py'}:spoken"}
    return {"algo": {"kl_coef": 0.01, "kl_as": "reward"}, "rollout": rollout, "steps": 3}


def ranks(folder: Path) -> dict[str, Any]:
    """Two ranks, each of which gets its share of the forests."""
    return {"trainer": {"name": "fsdp", "ranks": 2, "device": "cpu", "threads": 1}}


@pytest.mark.parametrize("settings", [critic, penalty, ranks])
def test_what_it_does_for_the_driver_is_what_the_driver_does(settings: Any, ray_nodes: Any, tmp_path: Path) -> None:
    more = settings(tmp_path)
    held = on_ray(ray_nodes, tmp_path / "held", **more)
    driver = on_ray(ray_nodes, tmp_path / "driver", **more, **{"cluster.sessions": False})
    require_same(tmp_path / "held", held, (tmp_path / "driver", driver))
    assert trained(tmp_path / "held") == trained(tmp_path / "driver") != []
    processes = [{file.name for file in (tmp_path / name / "logs").iterdir()} for name in ("held", "driver")]
    assert ["sessions-0.log" in logs for logs in processes] == [True, False]

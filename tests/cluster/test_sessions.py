"""`cluster.sessions`: a process beside the driver stores, credits and trains on sessions, and the run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl import faults
from agentrl.train.record import ledger
from tests.cluster.test_contract import SILENCE
from tests.cluster.test_run import NARROWED, here, require_same, run, trained

__all__ = ["here"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def on_ray(ray_nodes: Any, folder: Path, **more: Any) -> Any:
    cluster = {"name": "ray", "address": ray_nodes.address, "environments": 2}
    return run(folder, cluster=cluster, fleet={"engines": 2}, **more)


@pytest.mark.parametrize(("action", "point"), [("kill", "groups.taken"), ("stop", "trainer.step")])
def test_another_process_takes_its_place_where_it_is_killed_or_stopped(
    action: str, point: str, ray_nodes: Any, here: tuple[Path, Any], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    planned = [{"action": action, "target": "sessions", "point": point, "nth": 2, "seconds": 600.0}]
    plan.write_text(yaml.safe_dump({"faults": planned}))
    more = {"rollout": NARROWED, "cluster.silence_timeout": SILENCE}
    there = on_ray(ray_nodes, tmp_path / "ray", faults=str(plan), **more)
    assert len(faults.fired(tmp_path / "ray")) == 1
    require_same(tmp_path / "ray", there, here)
    assert list(ledger.faults(tmp_path / "ray")) == []
    assert trained(tmp_path / "ray") == trained(here[0])


FILTER = """
def spoken(group):
    return all(node.message.text is not None for session in group.sessions for node in session.nodes)
"""


def critic(folder: Path) -> dict[str, Any]:
    """A critic's values, the trainer's log-probabilities, proof of where tokens come from, a KL penalty as a reward,
    groups that are trained on twice, and a filter that reads messages."""
    (folder / "filters.py").write_text(FILTER)
    rollout = {"groups_per_step": 2, "group_size": 4, "reuse": 0.5, "filter": f"{folder / 'filters.py'}:spoken"}
    algo = {"name": "ppo", "kl_coef": 0.01, "kl_as": "reward"}
    return {"algo": algo, "record_logprobs": True, "require_provenance": True, "rollout": rollout, "steps": 3}


def ranks(folder: Path) -> dict[str, Any]:
    """Two ranks, each of which gets its share of the forests."""
    return {"trainer": {"name": "fsdp", "ranks": 2, "device": "cpu", "threads": 1}}


@pytest.mark.parametrize(("settings", "on_nodes"), [(critic, False), (ranks, True)])
def test_what_it_does_for_the_driver_is_what_the_driver_does(
    settings: Any, on_nodes: bool, ray_nodes: Any, tmp_path: Path
) -> None:
    """The driver's own run is on the nodes as well, or in one process, which is the same run (`test_run.py`)."""
    more = settings(tmp_path)
    held = on_ray(ray_nodes, tmp_path / "held", **more)
    if on_nodes:
        driver = on_ray(ray_nodes, tmp_path / "driver", **more, **{"cluster.sessions": False})
    else:
        driver = run(tmp_path / "driver", **more)
    require_same(tmp_path / "held", held, (tmp_path / "driver", driver))
    assert trained(tmp_path / "held") == trained(tmp_path / "driver") != []
    assert "sessions-0.log" in {file.name for file in (tmp_path / "held" / "logs").iterdir()}
    assert not list(tmp_path.glob("driver/logs/sessions-0.log"))

"""Workers on Ray that die, drivers that are killed, nodes that don't fit."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import Cluster, Resources, Role
from agentrl.cluster.ray import versions
from agentrl.errors import ConfigError, DeadlineExceeded, InfraError
from agentrl.tools.sandbox.docker import daemon
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_contract import COUNTER, LONG
from tests.cluster.test_server import alive, until
from tests.conftest import need


@pytest.fixture
def ray_cluster(ray_nodes: Any) -> Iterator[Cluster]:
    from agentrl.cluster.ray.cluster import RayCluster

    found = RayCluster(ray_nodes.address)
    yield found
    found.close()


SANDBOXED = Role("environments", "tests.cluster.roles:Sandboxed", (), threads=1)
FAR = replace(COUNTER, resources=Resources(custom={"far": 1}))
DRIVER = """
import sys, time
from agentrl.cluster.ray.cluster import RayCluster
from tests.cluster.test_contract import COUNTER
cluster = RayCluster(sys.argv[1])
worker = cluster.spawn(COUNTER)
worker.wait_ready(240)
print(worker.run("process", timeout=60), worker.run("start_child", timeout=60), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_where_the_driver_is_killed_its_workers_and_what_they_started_end(ray_nodes: Any) -> None:
    command = [sys.executable, "-c", DRIVER, ray_nodes.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        below = [int(pid) for pid in driver.stdout.readline().split()]
        driver.kill()
    assert len(below) == 2
    until(lambda: not any(map(alive, below)), "they go on")


@pytest.mark.slow
def test_a_node_without_the_runs_folder_is_named_and_none_is_made_there(ray_cluster: Cluster, tmp_path: Path) -> None:
    """It was made there, empty, and what failed was whatever looked for a file of the run's first."""
    ray_cluster.logs = tmp_path / "run" / "logs"  # which the driver's own machine has lost, as other nodes never had it
    with pytest.raises(ConfigError, match=r"\(\w{6}\) has no folder .*/run/logs, .*all nodes share .*agentrl doctor"):
        ray_cluster.spawn(COUNTER).wait_ready(LONG)
    assert not (tmp_path / "run").exists()


CONTAINER = (
    DRIVER.replace("COUNTER", "SANDBOXED")
    .replace("test_contract", "test_workers")
    .replace(
        'print(worker.run("process", timeout=60), worker.run("start_child", timeout=60), flush=True)',
        'print(worker.run("open", timeout=60), flush=True)',
    )
)


@pytest.mark.slow
def test_where_the_driver_is_killed_the_containers_of_its_workers_are_removed(ray_nodes: Any) -> None:
    need(daemon.available(), "a Docker daemon (sandboxes/ci-docker.sh starts one)")
    command = [sys.executable, "-c", CONTAINER, ray_nodes.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        container = driver.stdout.readline().strip()
        assert container in running_containers()
        driver.kill()
    until(lambda: container not in running_containers(), "its container goes on")


def running_containers() -> set[str]:
    return {one["Id"] for one in daemon.daemon().api.containers()}


@pytest.mark.slow
async def test_a_role_is_placed_where_its_resources_are(ray_cluster: Cluster) -> None:
    far = next(node for node in ray_cluster.nodes() if node.custom)
    worker = ray_cluster.spawn(FAR)
    await worker.ready(LONG)
    assert worker.node == far.name
    await worker.close()


@pytest.mark.slow
async def test_what_no_node_has_waits_for_one_that_joins_as_long_as_a_start_may_take(
    ray_cluster: Cluster, ray_nodes: Any
) -> None:
    later = replace(COUNTER, resources=Resources(1, custom={"later": 1}))
    given_up, waits = ray_cluster.spawn(later), ray_cluster.spawn(later)
    with pytest.raises(DeadlineExceeded, match=r"it needs 1 CPU, 1 later, and .* there was .*8 CPUs, 0 GPUs"):
        await given_up.ready(0.1)
    given_up.kill()
    waiting = asyncio.create_task(waits.ready(LONG))
    await asyncio.sleep(0)
    node = add_node(ray_nodes, num_cpus=1, resources={"later": 1})
    try:
        await waiting
        assert await waits.call("add", 1, timeout=LONG) == 6
        await waits.close()
    finally:
        await asyncio.to_thread(remove_node, ray_nodes, node)


FILE = """
import os

import helper_of_this_test


class Here:
    def variables(self):
        return helper_of_this_test.NAME, dict(os.environ)

    def refuse(self):
        from agentrl.errors import ConfigError

        raise ConfigError("no")
"""


@pytest.mark.slow
async def test_a_worker_on_a_running_cluster_has_the_drivers_variables_and_path_and_what_lies_beside_a_file(
    ray_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "role.py").write_text(FILE)
    (tmp_path / "helper_of_this_test.py").write_text("NAME = 'beside'")
    for name in ("OF_A_TEST_API_KEY", "HF_ENDPOINT", "LEFT_OUT"):
        monkeypatch.setenv(name, f"the driver's {name}")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'below'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    ray_cluster.variables = ["*_API_KEY", "HF_ENDPOINT"]
    worker = ray_cluster.spawn(replace(FAR, make=f"{tmp_path / 'role.py'}:Here", arguments=()))
    await worker.ready(LONG)
    beside, found = await worker.call("variables", timeout=LONG)
    assert beside == "beside"
    assert found["OF_A_TEST_API_KEY"] == "the driver's OF_A_TEST_API_KEY"
    assert found["HF_ENDPOINT"] == "the driver's HF_ENDPOINT"
    assert "LEFT_OUT" not in found
    assert str(tmp_path / "below") in found["PYTHONPATH"].split(os.pathsep)
    with pytest.raises(ConfigError) as refused:
        await worker.call("refuse", timeout=LONG)
    assert refused.value.__notes__ == [f"raised by environments on {worker.node}: refuse"]
    await worker.close()


@pytest.mark.slow
async def test_another_version_on_a_node_is_noticed_when_a_worker_starts(
    ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = dict(versions.versions())
    monkeypatch.setattr(versions, "versions", lambda: here | {"torch": "1.0", "agentrl": "another"})
    worker = ray_cluster.spawn(FAR)
    with pytest.raises(ConfigError, match=re.escape(f"torch {here['torch']} (here 1.0)")):
        await worker.ready(LONG)
    await worker.close()


@pytest.mark.slow
async def test_a_node_that_dies_fails_its_workers_calls_and_not_those_of_others(
    ray_cluster: Cluster, ray_nodes: Any
) -> None:
    near, far = ray_cluster.spawn(COUNTER), add_node(ray_nodes, num_cpus=1, resources={"doomed": 1})
    doomed = ray_cluster.spawn(replace(COUNTER, resources=Resources(custom={"doomed": 1})))
    await asyncio.gather(near.ready(LONG), doomed.ready(LONG))
    process = await doomed.call("process", timeout=LONG)
    call = asyncio.create_task(doomed.call("forever", timeout=LONG))
    await asyncio.to_thread(remove_node, ray_nodes, far)
    with pytest.raises(InfraError, match="died"):
        await call
    await asyncio.to_thread(until, lambda: not alive(process), "its process goes on")
    assert await near.call("add", 1, timeout=LONG) == 6
    await asyncio.gather(near.close(), doomed.close())

"""Placement groups: an assignment is taken whole, on its nodes, or not at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import Resources, Role
from agentrl.cluster.placement.nodes import node_name
from agentrl.cluster.placement.plan import Demand, Wanted, place
from agentrl.errors import ConfigError
from agentrl.train.driver.setup import complete
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_server import until

pytestmark = pytest.mark.slow

LONG = 240.0
RESOURCES = Resources(cpus=2)


@pytest.fixture
def cluster(ray_nodes: Any) -> Iterator[Any]:
    from agentrl.cluster.ray.cluster import RayCluster

    opened = RayCluster(ray_nodes.address)
    until(lambda: sum(node.alive for node in opened.nodes()) == 2, "a node that another test removed is still alive")
    yield opened
    opened.close()


def wanted(count: int, **custom: float) -> Wanted:
    workers = Demand("environments", count, cpus=RESOURCES.cpus, custom=custom)
    return Wanted(Demand("trainer", 0), Demand("engine", 0), (workers,))


def test_roles_are_started_where_they_are_assigned_and_what_is_not_free_is_refused_whole(cluster: Any) -> None:
    from ray.util.placement_group import placement_group_table

    before = placement_group_table().keys()  # other tests'
    assignment = place(cluster.nodes(), wanted(4))
    cluster.reserve(assignment, {"environments": RESOURCES}, LONG)
    role = Role("environments", "tests.cluster.roles:Counter", (5,), threads=1, resources=RESOURCES)
    workers = [cluster.spawn(role) for _ in assignment.places]
    for worker in workers:
        worker.wait_ready(LONG)
    assert sorted(worker.node for worker in workers) == sorted(each.node for each in assignment.places)
    assert len({worker.node for worker in workers}) == 2

    told = r"free within 0\.5 s .*6 x environments .*There: .*Free now, in all: "
    with pytest.raises(ConfigError, match=told):
        cluster.reserve(place(cluster.nodes(), wanted(6)), {"environments": RESOURCES}, 0.5)
    states = [group["state"] for name, group in placement_group_table().items() if name not in before]
    assert sorted(states) == ["CREATED", "REMOVED"]

    workers[0].shutdown()
    again = cluster.spawn(role)
    again.wait_ready(LONG)
    assert again.node == assignment.places[0].node


def test_a_run_takes_the_places_that_its_dry_run_shows(cluster: Any, ray_nodes: Any, tmp_path: Path) -> None:
    from ray.util.placement_group import placement_group_table

    from agentrl.train.plan.dry_run import describe_run
    from agentrl.train.plan.placing import reserve
    from agentrl.train.plan.step import Rates

    settings = {
        "env": "calculator",
        "trainer": {"name": "fsdp", "ranks": 3, "device": "cpu"},
        "engine": {"name": "sglang", "device": "cpu"},
        "fleet": {"engines": 2},
        "cluster": {
            "name": "ray",
            "address": ray_nodes.address,
            "environments": 2,
            "place_timeout": LONG,
            "resources": {"trainer": {"cpus": 3}, "engine": {"cpus": 1, "custom": {"far": 1}}},
        },
    }
    config = complete(settings)
    (tmp_path / "config.json").write_text("{}")
    before = placement_group_table().keys()
    reserve(cluster, config.cluster, config.learners, config.policies, tmp_path)
    (taken,) = (group for name, group in placement_group_table().items() if name not in before)
    names = {node["NodeID"]: node_name(node["NodeManagerAddress"], node["NodeID"]) for node in ray_nodes_of()}
    of_run = Counter(
        (names[taken["bundles_to_node_id"][number]], tuple(sorted(bundle.items())))
        for number, bundle in taken["bundles"].items()
    )
    trainer, engine, worker = (("CPU", 3.0),), (("CPU", 1.0), ("far", 1.0)), (("CPU", 1.0),)
    asked = {"trainer": trainer, "engine": engine, "environments": worker}
    lines = [re.fullmatch(r"(.*): (trainer|engine|environments) \d+", line) for line in describe_run(config, Rates())]
    assert of_run == Counter((line[1], asked[line[2]]) for line in lines if line)
    assert of_run.total() == 7


def test_a_run_that_does_not_fit_is_refused_on_its_own_ray_and_waits_with_a_word_on_a_cluster_that_may_grow(
    cluster: Any, ray_nodes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from agentrl.train.plan.placing import reserve

    (tmp_path / "config.json").write_text("{}")
    own = {"name": "ray", "environments": 999}
    config = complete({"env": "calculator", "cluster": own})
    with pytest.raises(ConfigError, match=r"999 CPUs in all.*cluster\.environments="):
        reserve(cluster, config.cluster, config.learners, {}, tmp_path)
    joined = own | {"address": ray_nodes.address}
    config = complete({"env": "calculator", "cluster": joined})
    reserve(cluster, config.cluster, config.learners, {}, tmp_path)
    told = r"999 CPUs in all.*waiting up to 900 s \(cluster\.start_timeout\) for nodes"
    assert sum(bool(re.search(told, said)) for said in caplog.messages) == 1  # Ray may say something beside it


def test_places_are_found_once_a_node_joins_that_holds_them(
    cluster: Any, ray_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.cluster.ray import cluster as on_ray

    monkeypatch.setattr(on_ray, "_LOOK_SECONDS", 0.1)
    with pytest.raises(ConfigError, match="grown"):
        cluster.awaited(wanted(1, grown=1), 0.2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cluster.awaited, wanted(1, grown=1), LONG)
        node = add_node(ray_nodes, num_cpus=2, resources={"grown": 1})
        try:
            found = waiting.result()
            assert [node.node_id[-6:] in place.node for place in found.places] == [True]
        finally:
            remove_node(ray_nodes, node)


def ray_nodes_of() -> Any:
    import ray

    return ray.nodes()

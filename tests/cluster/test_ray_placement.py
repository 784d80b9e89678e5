"""Placement groups: an assignment is taken whole, on its nodes, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.cluster import Resources, Role
from agentrl.cluster.placement import Demand, Wanted, place
from agentrl.errors import ConfigError

LONG = 60.0
RESOURCES = Resources(cpus=2)


@pytest.fixture(scope="module")
def cluster(ray_nodes: Any) -> Iterator[Any]:
    from agentrl.cluster.ray import RayCluster

    opened = RayCluster(ray_nodes.address)
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

"""Workers follow the nodes of a cluster: they come with nodes that join, and leave nodes that are drained."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl import cluster
from agentrl.cluster import Resources, Role, open_cluster
from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement import elastic, moving
from agentrl.cluster.pool import WorkerPool
from agentrl.config import ClusterConfig
from agentrl.types import Session, Status, Task
from tests.cluster.conftest import add_node, remove_node
from tests.cluster.test_contract import COUNTER
from tests.cluster.test_server import PATIENCE

LONG = 240.0
PLAYING = Role("environments", "tests.cluster.roles:Playing", (), threads=1, resources=Resources(custom={"spot": 1}))
COUNTS = st.integers(1, 50)


@given(COUNTS, st.none() | COUNTS, COUNTS, st.integers(0, 50))
@pytest.mark.slow
def test_a_run_has_between_its_first_number_and_the_most_and_no_node_gets_more_than_before(
    count: int, most: int | None, before: int, now: int
) -> None:
    most = None if most is None else max(count, most)
    found = elastic.count_wanted(count, most, before, now)
    assert count <= found <= (most or count)
    assert found == count or found * before <= count * now
    assert elastic.count_wanted(count, most, before, now + 1) >= found


def test_nodes_that_died_or_are_drained_or_lack_what_a_worker_occupies_take_no_new_workers() -> None:
    """A head without cores was counted: of workers on one node, another node brought half as many as it should."""
    here = ClusterNode("a", 1, 0, {"spot": 1.0})
    nodes = [here, replace(here, name="b", alive=False), replace(here, name="c", draining=True)]
    lacking = [replace(here, name="d", cpus=0), replace(here, name="e", custom={})]
    assert elastic.usable([*nodes, *lacking], Resources(cpus=1, custom={"spot": 1})) == 1
    assert elastic.usable([*nodes, *lacking], Resources()) == 3
    assert elastic.find_drained(nodes) == {"c"}


def test_workers_of_a_drained_node_fit_elsewhere_where_all_that_they_take_is_free() -> None:
    rank, node = Resources(cpus=1, gpus=1, custom={"fast": 1}), ClusterNode("a", 8, 8, {"fast": 8})
    free = moving.free_of(node, {"CPU": 2.0, "GPU": 1.0, "fast": 4.0, "memory": 9.0}, [rank])
    assert (free.cpus, free.gpus, free.custom) == (3.0, 2, {"fast": 5.0})
    assert moving.fit([free], rank, 2, 1)
    assert not moving.fit([free], rank, 3, 1)
    halves = [replace(free, name=name, gpus=1) for name in "ab"]
    assert moving.fit(halves, rank, 2, 1)
    assert not moving.fit(halves, rank, 2, 2)
    assert not moving.fit([], rank, 1, 1)


@pytest.mark.slow
def test_workers_that_are_started_one_by_one_are_spread_also_where_they_reserve_nothing(ray_nodes: Any) -> None:
    """Engines on CPUs went anywhere, and a node that had joined stayed without one."""
    with open_cluster(ClusterConfig(name="ray", address=ray_nodes.address), None):
        workers = []
        for _ in range(4):
            workers.append(cluster.current().spawn(COUNTER))
            workers[-1].wait_ready(LONG)
        assert sorted(Counter(worker.node for worker in workers).values()) == [2, 2]


def drain(address: str, node: str) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(1000 * (time.time() + 600))
    accepted, why = GcsClient(address=address).drain_node(node, reason, "the test takes it away", deadline)
    assert accepted, why


async def soon(done: Callable[[], bool], what: str) -> None:
    """`until` for what the event loop changes, which another thread would see half changed."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_workers_come_with_a_node_and_end_their_sessions_before_they_leave_one(
    ray_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "LOOK_SECONDS", 0.2)
    add = partial(add_node, ray_nodes, num_cpus=1)
    first = add(resources={"spot": 3})  # in the main thread: Ray sets handlers of signals
    second = None
    with open_cluster(ClusterConfig(name="ray", address=ray_nodes.address), None):
        workers = WorkerPool(PLAYING, 3, LONG, 0, most=4)  # a node each, of those that the fixture and the test began
        try:
            await workers.start()
            assert len(set(workers.nodes)) == 1
            second = add(resources={"spot": 4})
            await soon(lambda: len(workers.nodes) == 4, "no worker on the new node")
            before = set(workers.nodes)
            assert len(before) == 2

            async def play(number: int) -> Session:
                session = Session(str(number), Task(id="t"), "g", number)
                found: Session = await workers.call("play", session, timeout=LONG)
                return found

            playing = [asyncio.create_task(play(number)) for number in range(4)]
            await asyncio.sleep(0.3)
            await asyncio.to_thread(drain, ray_nodes.address, first.node_id)
            await soon(lambda: len(set(workers.nodes)) == 1 and len(workers.nodes) == 3, "no workers elsewhere")
            sessions = await asyncio.gather(*playing)
            assert {session.status for session in sessions} == {Status.COMPLETED}
            assert len({session.info["process"] for session in sessions}) == 4
            await soon(lambda: len(workers.under_way) == 3, "workers stay on the drained node")
        finally:
            await workers.close()
    for node in (first, second):
        if node is not None:
            remove_node(ray_nodes, node)

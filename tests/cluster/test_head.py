"""A Ray cluster without its head, and Ray that does not start: errors with what to do, in time."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any

import pytest

from agentrl.cluster import Role, opened, while_not_lost
from agentrl.cluster.ray.head import Head
from agentrl.config import ClusterConfig
from agentrl.errors import ConfigError, InfraError
from tests.conftest import need


@pytest.mark.slow
def test_a_head_is_lost_when_it_has_not_answered_for_its_seconds_and_required_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = Head(f"127.0.0.1:{server.getsockname()[1]}", seconds=0.5)
        head.require()
        assert not head.lost.done()
    with pytest.raises(InfraError, match=r"does not answer: .*resume the run"):
        head.require()
    assert "does not answer" in str(head.lost.result(timeout=60))
    head.close()


def test_a_head_that_died_just_before_the_run_ends_is_lost_then_too() -> None:
    """Each worker was waited for before: 50 seconds, and then Ray ended the process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there, gone = (Head(f"127.0.0.1:{server.getsockname()[1]}", seconds=600) for _ in range(2))
        there.close()
        assert not there.lost.done()
    gone.close()
    assert "does not answer" in str(gone.lost.result(timeout=0))
    there.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_call_that_comes_after_a_clusters_end_starts_no_other_ray(ray_nodes: Any) -> None:
    """Ray starts itself for calls without one: a late thread was held up by that, and left a cluster behind."""
    import ray
    from ray.exceptions import RaySystemError

    with opened(ClusterConfig(name="ray", address=ray_nodes.address), None) as cluster:
        pass
    for late in (lambda: cluster.spawn(Role("environments", "tests.cluster.roles:Counter")), lambda: ray.put(1)):
        with pytest.raises(RaySystemError, match=r"not been (started|initialized)|ray\.init"):
            late()
        assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_are_as_they_were_last_seen_while_the_head_does_not_answer(
    ray_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray was asked, in a thread that waits for the head for a minute: a run whose steps were done ended with it."""
    import agentrl.cluster.ray.cluster as on_ray

    def asked(*_: Any) -> None:
        raise AssertionError("Ray was asked")

    with opened(ClusterConfig(name="ray", address=ray_nodes.address), None) as cluster:
        assert isinstance(cluster, on_ray.RayCluster)
        nodes, head = cluster.nodes(), cluster._head
        with socket.create_server(("127.0.0.1", 0)) as server:
            gone = Head(f"127.0.0.1:{server.getsockname()[1]}", seconds=600)
        with monkeypatch.context() as replaced:
            replaced.setattr(cluster, "_head", gone)
            replaced.setattr(on_ray._ray, "nodes", asked)
            assert cluster.nodes() == nodes != []
        gone.close()
        assert cluster._head is head
        assert cluster.nodes() == nodes


async def test_what_runs_on_a_lost_cluster_is_cancelled_and_the_error_is_the_clusters() -> None:
    lost: Future[InfraError] = Future()
    asyncio.get_running_loop().call_later(0.01, lost.set_result, InfraError("the head is gone"))
    with pytest.raises(InfraError, match="the head is gone"):
        async with while_not_lost(lost):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_errors_of_a_cluster_that_is_not_lost_are_its_own() -> None:
    with pytest.raises(ConfigError, match="another"):
        async with while_not_lost(Future()):
            raise ConfigError("another")


@pytest.mark.slow
def test_ray_that_does_not_start_is_tried_again_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node start raises a bare Exception after 30 seconds, which was an error without a name."""
    need(find_spec("ray") is not None, "the tests of cluster=ray need Ray (the extra `ray`)")
    import ray

    tries: list[Any] = []

    def init(*where: Any, **_: Any) -> None:
        tries.append(where)
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with (
        pytest.raises(InfraError, match="Ray did not start on this machine, 2 times: The current node timed out"),
        opened(ClusterConfig(name="ray"), None),
    ):
        pass
    assert len(tries) == 2

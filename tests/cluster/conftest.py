"""Two Ray nodes on this machine, started once for all tests that need them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cluster.test_server import until
from tests.conftest import need
from tests.suite.schedule import kept

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
os.environ.setdefault("RAY_health_check_period_ms", "500")  # a node counts as dead after five checks, 15 s by default
for unused in ("prestart_worker_first_driver", "enable_worker_prestart", "enable_metrics_collection", "event_stats"):
    os.environ.setdefault(f"RAY_{unused}", "0")  # Python processes that only the first of many drivers would take
STORE = 80 << 20
"""Bytes of a node's object store, which nothing of ours uses."""


@pytest.fixture(scope="session")
def ray_nodes() -> Any:
    """A head and another node, which has the resource `far`; they end when this worker has played all tests of Ray."""
    need(find_spec("ray") is not None, "the tests of cluster=ray need Ray (the extra `ray`)")
    return kept("ray", _nodes)


@contextmanager
def _nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 8, "include_dashboard": False}
    cluster = Cluster()
    add_node(cluster, **small, include_log_monitor=False, no_monitor=True)
    add_node(cluster, **small, resources={"far": 8})
    yield cluster
    cluster.shutdown()


def add_node(cluster: Any, **settings: Any) -> Any:
    """A new node; a raylet that is not up in 30 s, on a busy machine, is an error of Ray's."""
    for left in (2, 1, 0):
        try:
            return cluster.add_node(object_store_memory=STORE, **settings)
        except Exception:
            if not left:
                raise
    raise AssertionError("unreachable")


def remove_node(cluster: Any, node: Any) -> None:
    """Kill a node, and wait until the cluster has noticed: until then it would be given to the next test."""
    cluster.remove_node(node, False)
    until(
        lambda: not any(one["Alive"] for one in cluster.global_state.node_table() if one["NodeID"] == node.node_id),
        "the cluster does not notice that a node is gone",
    )

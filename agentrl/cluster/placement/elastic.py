"""The number of workers of a run, while nodes join its cluster and leave."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.cluster.base import ClusterNode, Resources

LOOK_SECONDS = 5.0
"""Seconds between two looks at the nodes."""


def usable(nodes: Iterable[ClusterNode], worker: Resources) -> int:
    """Return the number of nodes that could hold a worker of these resources, were nothing else on them."""
    return sum(node.alive and not node.draining and node.holds(worker) for node in nodes)


def drained(nodes: Iterable[ClusterNode]) -> set[str]:
    """The names of the nodes that are to be left."""
    return {node.name for node in nodes if node.alive and node.draining}


def wanted(count: int, most: int | None, before: int, now: int) -> int:
    """Return the number of workers that a run should have: on each node that joins as many as the others have.

    Args:
        count: how many it began with; it never wants fewer.
        most: how many it may have; None is `count`.
        before: the usable nodes when it began.
        now: the usable nodes now.
    """
    return max(count, min(most or count, count * now // max(before, 1)))

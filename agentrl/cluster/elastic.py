"""How many workers a run has while nodes join its cluster and leave it."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.cluster.base import Node, Resources

LOOK_SECONDS = 5.0
"""How often the nodes are looked at."""


def usable(nodes: Iterable[Node], worker: Resources) -> int:
    """How many nodes new workers can be started on that occupy so much each, were nothing else on them."""
    return sum(node.alive and not node.draining and node.holds(worker) for node in nodes)


def drained(nodes: Iterable[Node]) -> set[str]:
    """The names of the nodes that are to be left."""
    return {node.name for node in nodes if node.alive and node.draining}


def wanted(count: int, most: int | None, before: int, now: int) -> int:
    """How many workers a run should have: on each node that joins as many as the others have.

    Args:
        count: how many it began with; it never wants fewer.
        most: how many it may have; None is `count`.
        before: the usable nodes when it began.
        now: the usable nodes now.
    """
    return max(count, min(most or count, count * now // max(before, 1)))

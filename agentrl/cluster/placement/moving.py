"""Room on other nodes for workers whose nodes are drained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.cluster.base import ClusterNode, Resources
from agentrl.cluster.placement.inventory import is_ours
from agentrl.cluster.placement.plan import Demand, Wanted, place
from agentrl.errors import ConfigError


def free_of(node: ClusterNode, available: Mapping[str, float], own: Sequence[Resources]) -> ClusterNode:
    """A node with what is free on it once some workers have ended.

    Args:
        node: all that it has.
        available: what Ray says is free, under Ray's names.
        own: what the workers occupy.
    """
    custom = {name: amount for name, amount in available.items() if is_ours(name) and name not in ("CPU", "GPU")}
    for worker in own:
        for name, amount in worker.custom.items():
            custom[name] = custom.get(name, 0.0) + amount
    cpus = available.get("CPU", 0.0) + sum(worker.cpus for worker in own)
    return replace(node, cpus=cpus, gpus=int(available.get("GPU", 0)) + sum(each.gpus for each in own), custom=custom)


def fit(free: Sequence[ClusterNode], worker: Resources, count: int, together: int) -> bool:
    """Return whether so many workers find a place, each `together` of them on one node.

    Args:
        free: the nodes, with what is free on them.
        worker: what each occupies.
        count: how many there are.
        together: how many of them are one unit.
    """
    unit = worker.times(together)
    units = Demand("trainer", count // together, unit.gpus, unit.cpus, custom=unit.custom)
    try:
        place(free, Wanted(units, Demand("engine", 0)))
    except ConfigError:
        return False
    return True

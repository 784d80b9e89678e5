"""Names and descriptions of nodes, for messages."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from agentrl.cluster.base import ClusterNode, counted
from agentrl.cluster.placement.gpus import memory_of
from agentrl.cluster.placement.inventory import is_ours


def node_name(host: str, number: str) -> str:
    """A node in messages: its address, and the end of Ray's id, since several may have one address.

    The ids that Ray's local autoscaler gives differ in their end alone.
    """
    return f"{host} ({number[-6:]})"


def nodes_of(table: Iterable[Mapping[str, Any]], draining: Container[str]) -> list[ClusterNode]:
    """The nodes of Ray's table of them, given the ids of those that are drained."""
    found = []
    for row in table:
        has = dict(row["Resources"])
        cpus, gpus = has.pop("CPU", 0.0), int(has.pop("GPU", 0))
        custom = {name: amount for name, amount in has.items() if is_ours(name)}
        id, host = row["NodeID"], row["NodeManagerAddress"]
        kept = {"gpu_memory": memory_of(has), "host": host, "draining": id in draining, "id": id}
        found.append(ClusterNode(node_name(host, id), cpus, gpus, custom, row["Alive"], **kept))
    return found


def described(nodes: list[ClusterNode]) -> str:
    """Describe what nodes have, in words."""
    each = [f"{node.name}: {', '.join(_has(node))}" for node in nodes if node.alive]
    return "; ".join(each) or "no node"


def _has(node: ClusterNode) -> list[str]:
    cores, gpus = f"{node.cpus:g} {counted(node.cpus, 'CPU')}", f"{node.gpus} {counted(node.gpus, 'GPU')}"
    return [cores, gpus, *(f"{amount:g} {name}" for name, amount in node.custom.items())]

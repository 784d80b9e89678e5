"""Names and descriptions of nodes, for messages."""

from __future__ import annotations

from agentrl.cluster.base import ClusterNode, counted


def node_name(host: str, number: str) -> str:
    """A node in messages: its address, and the end of Ray's id, since several may have one address.

    The ids that Ray's local autoscaler gives differ in their end alone.
    """
    return f"{host} ({number[-6:]})"


def described(nodes: list[ClusterNode]) -> str:
    """Describe what nodes have, in words."""
    each = [f"{node.name}: {', '.join(_has(node))}" for node in nodes if node.alive]
    return "; ".join(each) or "no node"


def _has(node: ClusterNode) -> list[str]:
    cores, gpus = f"{node.cpus:g} {counted(node.cpus, 'CPU')}", f"{node.gpus} {counted(node.gpus, 'GPU')}"
    return [cores, gpus, *(f"{amount:g} {name}" for name, amount in node.custom.items())]

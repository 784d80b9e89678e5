"""The resources that workers take of their nodes: changed by the settings, and under Ray's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.cluster.base import ClusterNode, Resources, Role
from agentrl.config.cluster import ResourcesConfig, RewardResources, RoleResources


def override_resources(kind: str, own: Resources, settings: RoleResources | None) -> Resources:
    """Return what a worker occupies: what its role asks for, changed by the settings."""
    chosen: ResourcesConfig | None = getattr(settings, kind, None)
    if chosen is None:
        return own
    return Resources(
        own.cpus if chosen.cpus is None else chosen.cpus,
        own.gpus + (chosen.gpus if isinstance(chosen, RewardResources) else 0),
        {**own.custom, **chosen.custom},
    )


def apply_settings(role: Role, settings: RoleResources | None) -> Role:
    """A role with what it occupies by the settings."""
    return replace(role, resources=override_resources(role.kind, role.resources, settings))


def on_gpus(device: str, nodes: Sequence[ClusterNode]) -> bool:
    """Return whether a role computes on GPUs: `auto` does where a node has some."""
    return device == "cuda" or (device == "auto" and any(node.gpus for node in nodes if node.alive))


def bundle(wanted: Resources) -> dict[str, float]:
    """Return what a worker occupies, under Ray's names; one byte of memory if nothing, since no bundle is empty."""
    has = {"CPU": wanted.cpus, "GPU": float(wanted.gpus), **wanted.custom}
    return {name: amount for name, amount in has.items() if amount} or {"memory": 1.0}


def is_ours(name: str) -> bool:
    """Return whether a resource of Ray's is one that people name, and not one of its own."""
    return ":" not in name and "memory" not in name and "_group_" not in name

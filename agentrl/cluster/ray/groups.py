"""Ray's placement groups: places that are taken whole, on the nodes that a placement chose, and the GPUs in them.

`agentrl.cluster.ray.cluster` imports this module once it has set what Ray reads when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.cluster.base import Resources
from agentrl.cluster.placement.assignment import Assignment
from agentrl.cluster.placement.bundles import occupied
from agentrl.cluster.placement.demands import Wanted
from agentrl.cluster.placement.inventory import bundle, is_ours
from agentrl.errors import ConfigError, InfraError, brief

START_SECONDS = 120.0
"""Seconds that a process may take to start in a place that is taken."""
_ray: Any = ray  # parts of it are not typed


def in_bundle(group: PlacementGroup, number: int) -> PlacementGroupSchedulingStrategy:
    """Return the scheduling strategy that puts an actor into a bundle."""
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)


@contextmanager
def demanded(wanted: Wanted) -> Iterator[None]:
    """Within the block autoscalers are asked for nodes that hold all of this, without anything being queued there.

    Engines on the trainer's GPUs ask for no others.
    """
    bundles = []
    for demand in wanted.demands:
        shared = wanted.shared if demand.role == "engine" else 0
        for number in range(demand.count):
            gpus = 0 if number < shared else demand.gpus
            bundles.append(bundle(Resources(demand.cpus, gpus, demand.custom)))
    request_resources(bundles=bundles)
    try:
        yield
    finally:
        request_resources(bundles=[])


def create_group(
    assignment: Assignment,
    roles: Mapping[str, Resources],
    members: Mapping[str, int],
    ids: Mapping[str, str],
    timeout: float,
    there: str,
) -> PlacementGroup:
    """A group with a bundle for each place of an assignment, on its node.

    Args:
        assignment: the places.
        roles: what a worker of each role occupies.
        members: of roles whose places hold several workers, how many.
        ids: Ray's ids of the nodes, by their names.
        timeout: seconds in which all of it must be free.
        there: what the nodes have, in words.

    Raises:
        ConfigError: it was not; nothing is taken.
    """
    places = assignment.places
    bundles = [bundle(occupied(each, roles[each.role], members.get(each.role, 1))) for each in places]
    where = [{"ray.io/node-id": ids[each.node]} for each in places]
    group: PlacementGroup = placement_group(bundles, strategy="SPREAD", bundle_label_selector=where)
    if group.wait(timeout):
        return group
    remove_placement_group(group)
    asked = "; ".join(f"{number} x {role} ({roles[role]})" for role, number in assignment.counts().items())
    free = ", ".join(
        f"{amount:g} {name}" for name, amount in sorted(_ray.available_resources().items()) if is_ours(name)
    )
    raise ConfigError(
        f"the cluster did not have all that the run takes free within {timeout:g} s (cluster.place_timeout). "
        f"Asked: {asked}. There: {there}. Free now, in all: {free or 'nothing'}"
    )


def gpus_of_trainer(group: PlacementGroup, assignment: Assignment) -> dict[int, tuple[str, ...]]:
    """The GPUs in the trainer's bundles, by the bundle's number, where engines share them: Ray chose which.

    Raises:
        InfraError: a node does not say; the group is removed.
    """
    if not any(place.colocated for place in assignment.places):
        return {}
    asked = {
        number: ray.remote(_own_gpus)
        .options(num_cpus=0, num_gpus=len(place.devices), scheduling_strategy=in_bundle(group, number))
        .remote()
        for number, place in enumerate(assignment.places)
        if place.role == "trainer"
    }
    try:
        return dict(zip(asked, ray.get(list(asked.values()), timeout=START_SECONDS), strict=True))
    except RayError as error:
        remove_placement_group(group)
        raise InfraError(f"the nodes do not say which GPUs are the trainer's: {brief(str(error))}") from None


def _own_gpus() -> tuple[str, ...]:
    """The GPUs that Ray gave to this process, by their node's names."""
    return tuple(map(str, ray.get_runtime_context().get_accelerator_ids()["GPU"]))

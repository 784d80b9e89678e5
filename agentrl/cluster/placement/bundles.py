"""The places of a run's placement group that have room, and the GPUs that a colocated engine finds in its own."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Set
from dataclasses import replace
from types import MappingProxyType

from agentrl.cluster.base import Resources, Role
from agentrl.cluster.placement.assignment import Assignment, Place

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that says which GPUs a process sees; ROCm's runtime reads it, too."""


class Bundles:
    """The places of an assignment, each a bundle of one or more workers of a role.

    Args:
        assignment: the places, in the order of the group's bundles.
        members: of roles whose places hold several workers, how many.
        gpus: the GPUs that the trainer's places got, by the number of the place: each node's own names for them.
    """

    def __init__(
        self,
        assignment: Assignment,
        members: Mapping[str, int],
        gpus: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self._places, self._members = assignment.places, members
        self._free = {(place.role, place.colocated): list[int]() for place in assignment.places}
        for number, place in enumerate(assignment.places):
            self._free[place.role, place.colocated] += [number] * members.get(place.role, 1)
        self._names = {
            (self._places[number].node, device): name
            for number, names in gpus.items()
            for device, name in zip(self._places[number].devices, names, strict=True)
        }

    def available(self, role: str, together: int, alive: Set[str]) -> int:
        """Return how many workers of a role find room on nodes that are alive, `together` of them in a place."""
        if self._members.get(role, 1) != together:
            return 0
        return sum(self._places[number].node in alive for number in self._free.get((role, False), ()))

    def take(self, role: str, alive: Set[str], colocated: bool = False) -> int | None:
        """The first bundle of a role with room, on a node that is alive; None where there is none."""
        free = self._free.get((role, colocated), [])
        for number in free:
            if self._places[number].node in alive:
                free.remove(number)
                return number
        return None

    def free(self, number: int) -> None:
        """A worker is no longer in that bundle."""
        insort(self._free[self._places[number].role, self._places[number].colocated], number)

    def node(self, number: int) -> str:
        """The node of a bundle."""
        return self._places[number].node

    def started_in(self, number: int, role: Role) -> Role:
        """A role as it is started in a bundle: a colocated one is told its GPUs, which are in the trainer's bundles."""
        place = self._places[number]
        if not place.colocated:
            return role
        names = ",".join(self._names[place.node, device] for device in place.devices)
        return replace(
            role, resources=replace(role.resources, gpus=0), environment={**role.environment, VISIBLE: names}
        )


def occupied(place: Place, worker: Resources, members: int) -> Resources:
    """Return what a place takes for its workers; a colocated engine's GPUs are in the trainer's places."""
    whole = worker.times(members)
    return replace(whole, gpus=0) if place.colocated else whole

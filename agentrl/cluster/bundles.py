"""Which places of a run's placement group have room."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Set

from agentrl.cluster.assignment import Assignment


class Bundles:
    """The places of an assignment, each a bundle of one or more workers of a role.

    Args:
        assignment: the places, in the order of the group's bundles.
        members: of roles whose places hold several workers, how many.
    """

    def __init__(self, assignment: Assignment, members: Mapping[str, int]) -> None:
        self._places, self._members = assignment.places, members
        self._free = {role: list[int]() for role in assignment.counts()}
        for number, place in enumerate(assignment.places):
            self._free[place.role] += [number] * members.get(place.role, 1)

    def available(self, role: str, together: int, alive: Set[str]) -> int:
        """How many workers of a role find room on nodes that are alive, where a place holds `together` of them."""
        if self._members.get(role, 1) != together:
            return 0
        return sum(self._places[number].node in alive for number in self._free.get(role, ()))

    def take(self, role: str, alive: Set[str]) -> int | None:
        """The first bundle of a role with room, on a node that is alive; None where there is none."""
        for number in self._free.get(role, ()):
            if self._places[number].node in alive:
                self._free[role].remove(number)
                return number
        return None

    def free(self, role: str, number: int) -> None:
        """A worker is no longer in that bundle."""
        insort(self._free[role], number)

    def node(self, number: int) -> str:
        """The node of a bundle."""
        return self._places[number].node

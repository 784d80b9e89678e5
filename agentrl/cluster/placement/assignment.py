"""Units on nodes and GPUs: the result of a placement, and how it is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.demands import Wanted
from agentrl.cluster.placement.search import Search, UnitKind


@dataclass(frozen=True)
class Place:
    """The place of a unit.

    Attributes:
        role: its role.
        number: which of its role's units, from 0.
        node: the node's name.
        devices: its GPUs, by their numbers on the node.
        colocated: whether it is an engine on the trainer's GPUs.
    """

    role: str
    number: int
    node: str
    devices: tuple[int, ...] = ()
    colocated: bool = False


@dataclass(frozen=True)
class Assignment:
    """A place for each unit."""

    places: tuple[Place, ...]

    def of(self, role: str) -> list[Place]:
        """A role's places in the order of their numbers."""
        return [place for place in self.places if place.role == role]

    def counts(self) -> dict[str, int]:
        """Return the number of places of each role."""
        return dict(Counter(place.role for place in self.places))

    def on(self, node: str) -> list[Place]:
        """Return the places on a node."""
        return [place for place in self.places if place.node == node]

    def idle(self, node: ClusterNode) -> list[int]:
        """A node's GPUs that nothing is on."""
        used = {device for place in self.on(node.name) for device in place.devices}
        return [device for device in range(node.gpus) if device not in used]


def fitted(nodes: Sequence[ClusterNode], wanted: Wanted) -> Assignment | None:
    """A place for everything that is wanted; None where it does not fit. See `agentrl.cluster.placement.plan.place`."""
    alive = [node for node in nodes if node.alive]
    order = sorted(range(len(alive)), key=lambda i: (-alive[i].gpus, alive[i].gpu_memory, -alive[i].cpus, i))
    ordered = [alive[i] for i in order]
    if wanted.others and Search(ordered, replace(wanted, others=())).run() is None:
        return None  # which is found sooner without the others
    search = Search(ordered, wanted)
    counts = search.run()
    if counts is None:
        return None
    search.spread(counts)
    by_number = dict(zip(order, counts, strict=True))
    nodes_with_counts = [(node, by_number[i]) for i, node in enumerate(alive)]
    return Assignment(tuple(_places(nodes_with_counts, search.kinds, wanted)))


def _places(
    nodes: Sequence[tuple[ClusterNode, Sequence[int]]], kinds: Sequence[UnitKind], wanted: Wanted
) -> Iterator[Place]:
    """The places of all units, numbered by node; colocated engines come before the others."""
    numbers = dict.fromkeys((demand.role for demand in wanted.demands), 0)
    numbers_apart = wanted.shared
    for node, counts in nodes:
        own, of_trainer = 0, 0
        for kind, count in zip(kinds, counts, strict=True):
            for _ in range(count):
                gpus, role = kind.demand.gpus, kind.demand.role
                start = of_trainer if kind.colocated else own
                if kind.colocated:
                    of_trainer += gpus
                else:
                    own += gpus
                if kind.demand is wanted.engines and not kind.colocated:
                    number, numbers_apart = numbers_apart, numbers_apart + 1
                else:
                    number, numbers[role] = numbers[role], numbers[role] + 1
                yield Place(role, number, node.name, tuple(range(start, start + gpus)), kind.colocated)

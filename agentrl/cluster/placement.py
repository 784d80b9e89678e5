"""Which part of a run goes to which node and GPU: computed before anything is started, all or nothing.

    assignment = place(nodes, Wanted(
        trainer=Demand("trainer", count=2, gpus=4),      # 8 ranks in 2 tensor-parallel groups
        engines=Demand("engine", count=4, gpus=2),       # tensor x pipeline = 2 GPUs each
        others=(Demand("environments", 8, cpus=1.0),),
        layout="disaggregated",
    ))

A unit (a tensor-parallel group of the trainer's ranks, an engine, a worker) is on one node; units of one demand may be
on several. Layouts:

- disaggregated: trainer and engines have GPUs of their own;
- colocated: each engine is on GPUs of the trainer, no two engines on the same;
- mixed: `colocated_engines` of the engines are on the trainer's GPUs, the others on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.cluster.base import Node
from agentrl.cluster.demands import LAYOUTS, Demand, Layout, Wanted
from agentrl.cluster.search import Kind, Search

__all__ = ["LAYOUTS", "Assignment", "Demand", "Layout", "Place", "Wanted", "fitted", "place"]


@dataclass(frozen=True)
class Place:
    """Where a unit is.

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

    def on(self, node: str) -> list[Place]:
        """What is on a node."""
        return [place for place in self.places if place.node == node]

    def idle(self, node: Node) -> list[int]:
        """A node's GPUs that nothing is on."""
        used = {device for place in self.on(node.name) for device in place.devices}
        return [device for device in range(node.gpus) if device not in used]


def place(nodes: Sequence[Node], wanted: Wanted) -> Assignment:
    """Assign everything that is wanted to nodes and GPUs.

    Args:
        nodes: the cluster, dead nodes too; where it does not matter, the first ones are taken first.
        wanted: what is to be placed.

    Raises:
        ConfigError: it does not fit; the message says what is asked, what is there and what would fit.
    """
    found = fitted(nodes, wanted)
    if found is None:
        from agentrl.cluster.refusal import refusal

        raise refusal(nodes, wanted)
    return found


def fitted(nodes: Sequence[Node], wanted: Wanted) -> Assignment | None:
    """Like `place`; None where it does not fit."""
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
    by_node = {search.nodes[i].name: counts[i] for i in range(len(counts))}
    return Assignment(tuple(_places(alive, by_node, search.kinds, wanted)))


def _places(
    nodes: Sequence[Node], counts: Mapping[str, Sequence[int]], kinds: Sequence[Kind], wanted: Wanted
) -> Iterator[Place]:
    """The places of all units, numbered by node; colocated engines come before the others."""
    numbers = dict.fromkeys((demand.role for demand in wanted.demands), 0)
    numbers_apart = wanted.shared
    for node in nodes:
        own, of_trainer = 0, 0
        for kind, count in zip(kinds, counts[node.name], strict=True):
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

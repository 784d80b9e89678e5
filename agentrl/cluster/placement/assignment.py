"""Units on nodes and GPUs: the result of a placement, and how it is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.demands import Demand, Wanted

SPREAD = ("environments", "rewards", "gateway")
"""Roles whose units are spread evenly over the nodes that have room."""
MOST_STEPS = 5_000
"""After as many sets of units, something is taken for impossible to place."""
_PARTS = 10_000
"""Resources are counted in whole parts, as in Ray: 0.0001 CPU is the least."""
Vector = tuple[int, ...]


@dataclass(frozen=True)
class UnitKind:
    """Units that are placed alike, with what each takes of every resource.

    `need` is over [GPUs, CPUs, GPUs of the trainer, custom resources …]; the trainer adds to the third.
    """

    demand: Demand
    count: int
    need: Vector
    colocated: bool = False


class Search:
    """A search for how many units of each kind each node gets.

    It is exact: it goes through the nodes, tries for each only those sets of units to which nothing can be added, and
    remembers from where the rest could not be placed. Only beyond `MOST_STEPS` it gives up, which takes hundreds of
    nodes that are almost full.
    """

    def __init__(self, nodes: Sequence[ClusterNode], wanted: Wanted) -> None:
        self.nodes = nodes
        names = sorted({name for demand in wanted.demands for name in demand.custom})
        shared, engines = wanted.shared, wanted.engines

        def need(demand: Demand, own: int, of_trainer: int) -> Vector:
            custom = (_parts(demand.custom.get(name, 0.0)) for name in names)
            return (own, _parts(demand.cpus), of_trainer, *custom)

        trainer = wanted.trainer
        kinds = [
            UnitKind(trainer, trainer.count, need(trainer, trainer.gpus, -trainer.gpus)),
            UnitKind(engines, shared, need(engines, 0, engines.gpus), colocated=True),
            UnitKind(engines, engines.count - shared, need(engines, engines.gpus, 0)),
            *(UnitKind(other, other.count, need(other, other.gpus, 0)) for other in wanted.others),
        ]
        self.kinds = [kind for kind in kinds if kind.count]
        self.has = [
            (node.gpus, _parts(node.cpus), 0, *(_parts(node.custom.get(name, 0.0)) for name in names)) for node in nodes
        ]
        self.allowed = [[_allows(node, kind.demand) for kind in self.kinds] for node in nodes]
        self.trainer_first = shared > 0 and trainer.count > 0
        self._failed: set[tuple[int, Vector]] = set()
        self._steps = 0
        width = 3 + len(names)
        self._rest = _sums_from(self.has, width)
        alone = [tuple(self._most_alone(i, k) for k in range(len(self.kinds))) for i in range(len(nodes))]
        self._rest_alone = _sums_from(alone, len(self.kinds))

    def run(self) -> list[list[int]] | None:
        """For each node how many units of each kind; None where they don't fit."""
        found: list[list[int]] = []
        if not self._from(0, tuple(kind.count for kind in self.kinds), found):
            return None
        return found + [[0] * len(self.kinds) for _ in self.nodes[len(found) :]]

    def _from(self, i: int, left: Vector, found: list[list[int]]) -> bool:
        """Place what is left on the nodes from the i-th on."""
        if not any(left):
            return True
        if (i, left) in self._failed or not self._possible(i, left):
            return False
        for counts in self._fillings(i, left):
            self._steps += 1
            if self._steps > MOST_STEPS:
                return False
            found.append(list(counts))
            if self._from(i + 1, tuple(a - b for a, b in zip(left, counts, strict=True)), found):
                return True
            found.pop()
        self._failed.add((i, left))
        return False

    def _possible(self, i: int, left: Vector) -> bool:
        """True if the rest could fit, each kind by itself and each resource in total."""
        if any(count > most for count, most in zip(left, self._rest_alone[i], strict=True)):
            return False
        for resource, there in enumerate(self._rest[i]):
            asked = sum(kind.need[resource] * count for kind, count in zip(self.kinds, left, strict=True))
            if resource != 2 and asked > there:
                return False
        return True

    def _most_alone(self, i: int, k: int) -> int:
        """The most units of a kind on a node by themselves; colocated ones beside as many ranks as it takes."""
        kind, has = self.kinds[k], list(self.has[i])
        if kind.colocated:
            has[2] = has[0]
        return _most(tuple(has), kind.need, kind.count) if self.allowed[i][k] else 0

    def _fillings(self, i: int, left: Vector) -> Iterator[Vector]:
        """The sets of units for a node to which none can be added, the largest numbers of the first kinds first.

        The trainer's number takes every value where engines share its GPUs: elsewhere it may be needed for them.
        """

        def extend(k: int, counts: Vector, free: Vector) -> Iterator[Vector]:
            if k == len(self.kinds):
                if not any(self._fits(i, j, left[j] - counts[j], free) for j in range(self.trainer_first, k)):
                    yield counts
                return
            most = _most(free, self.kinds[k].need, left[k]) if self.allowed[i][k] else 0
            for number in range(most, -1, -1):
                yield from extend(k + 1, (*counts, number), _less(free, self.kinds[k].need, number))

        yield from extend(0, (), self.has[i])

    def _fits(self, i: int, k: int, left: int, free: Vector) -> bool:
        return left > 0 and self.allowed[i][k] and _most(free, self.kinds[k].need, 1) > 0

    def spread(self, counts: list[list[int]]) -> None:
        """Move units of the roles in SPREAD from nodes with many to nodes with few, as far as there is room."""
        free = [self._free(i, counts[i]) for i in range(len(counts))]
        for k, kind in enumerate(self.kinds):
            while kind.demand.role in SPREAD:
                many = max(range(len(counts)), key=lambda i: counts[i][k])
                room = [i for i in range(len(counts)) if self._fits(i, k, 1, free[i])]
                few = min(room, key=lambda i: counts[i][k], default=many)
                if counts[many][k] - counts[few][k] < 2:
                    break
                for i, number in ((many, -1), (few, 1)):
                    counts[i][k] += number
                    free[i] = _less(free[i], kind.need, number)

    def _free(self, i: int, counts: Sequence[int]) -> Vector:
        free = self.has[i]
        for kind, number in zip(self.kinds, counts, strict=True):
            free = _less(free, kind.need, number)
        return free


def _sums_from(rows: Sequence[Vector], width: int) -> list[Vector]:
    """For each row the sum of it and those after it, and zeros at the end."""
    sums: list[Vector] = [(0,) * width]
    for row in reversed(rows):
        sums.append(tuple(a + b for a, b in zip(row, sums[-1], strict=True)))
    return sums[::-1]


def _allows(node: ClusterNode, demand: Demand) -> bool:
    memory = not (demand.gpus and demand.memory and node.gpu_memory) or demand.memory <= node.gpu_memory
    return memory and demand.node in ("", node.name)


def _parts(amount: float) -> int:
    return round(amount * _PARTS)


def _most(free: Vector, need: Vector, limit: int) -> int:
    """The number of units that fit into what is free, up to a limit."""
    return min(limit, *(have // each for have, each in zip(free, need, strict=True) if each > 0), limit)


def _less(free: Vector, need: Vector, number: int) -> Vector:
    return tuple(have - each * number for have, each in zip(free, need, strict=True))


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


def fit_assignment(nodes: Sequence[ClusterNode], wanted: Wanted) -> Assignment | None:
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

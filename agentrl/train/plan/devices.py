"""Memory of each device in a dry run: what is on it, what that takes, and what does not fit.

Trainer and engines that share GPUs take turns: while engines generate, the trainer keeps its weights, gradients and
optimizer state there, and while it computes, a colocated engine that sleeps keeps about `SLEEPING`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.assignment import Assignment
from agentrl.train.plan.memory import ENGINE_FRACTION, GIB, OVERHEAD, EngineMemory, TrainerMemory

SLEEPING = 1 * GIB
"""Bytes that an engine that sleeps still takes on each device; an assumption."""


@dataclass(frozen=True)
class Devices:
    """GPUs of a node that have the same on them, or the node itself, where nothing is on GPUs.

    Attributes:
        node: its name.
        numbers: the GPUs; none: the node's own memory.
        room: bytes of each of them; 0 where that is not known.
        trainers: ranks of the trainer on each.
        engines: ranks of engines on each.
        sleeping: whether the engines sleep while the trainer computes.
        models: bytes of other models: teachers, those of rewards, and policies beside the main one.
    """

    node: str
    numbers: tuple[int, ...]
    room: float
    trainers: int
    engines: int
    sleeping: bool = False
    models: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.node}, GPUs {', '.join(map(str, self.numbers))}" if self.numbers else self.node

    @property
    def overhead(self) -> float:
        """Bytes that drivers and allocators take."""
        return OVERHEAD if self.numbers else 0.0

    def kept(self, trainer: TrainerMemory) -> float:
        """Return the bytes that are taken beside engines while they generate."""
        return self.trainers * trainer.resident + self.models + self.overhead

    def while_training(self, trainer: TrainerMemory, engine: EngineMemory) -> float:
        """Return the bytes that are taken while the trainer computes; without the cache of engines that don't sleep."""
        beside = SLEEPING if self.sleeping else engine.weights
        return self.trainers * trainer.total + self.engines * beside + self.models + self.overhead

    def cache(self, trainer: TrainerMemory, engine: EngineMemory) -> float:
        """Return the bytes left for an engine's key-value cache; the share of each of several."""
        room = min(self.room * ENGINE_FRACTION, self.room - self.kept(trainer))
        return room / self.engines - engine.weights


def devices_of(assignment: Assignment, nodes: Sequence[ClusterNode], here: float) -> list[Devices]:
    """All devices that something is on, those with the same together."""
    found = list[Devices]()
    for node in nodes:
        places = [place for place in assignment.on(node.name) if place.role in ("trainer", "engine")]
        alike: dict[tuple[int, int, bool], list[int]] = {}
        for device in sorted({device for place in places for device in place.devices}):
            on = [place for place in places if device in place.devices]
            trainers = sum(place.role == "trainer" for place in on)
            sleeping = any(place.colocated for place in on)
            alike.setdefault((trainers, len(on) - trainers, sleeping), []).append(device)
        for (trainers, engines, sleeping), numbers in alike.items():
            found.append(Devices(node.name, tuple(numbers), node.gpu_memory * GIB, trainers, engines, sleeping))
        off = [place.role for place in places if not place.devices]
        if off:
            room = here if node is nodes[0] else 0.0
            found.append(Devices(node.name, (), room, off.count("trainer"), off.count("engine")))
    return found


def with_models(devices: Sequence[Devices], models: Iterable[tuple[float, bool]], here: float) -> list[Devices]:
    """The devices with other models on them: the first GPU of the run's node, or the node's own memory.

    Args:
        devices: those of trainer and engines, the run's node first.
        models: the bytes of each, and whether it is on a GPU where there is one.
        here: bytes of this machine's memory.
    """
    found = list(devices)
    node = devices[0].node
    for taken, on_gpu in models:
        gpus = [each for each in found if each.node == node and each.numbers] if on_gpu else []
        if gpus:
            first = min(gpus, key=lambda each: each.numbers[0])
            place, rest = found.index(first), first.numbers[1:]
            found[place] = replace(first, numbers=first.numbers[:1], models=first.models + taken)
            found[place + 1 : place + 1] = [replace(first, numbers=rest)] if rest else []
            continue
        place = next((i for i, each in enumerate(found) if not each.numbers and each.node == node), len(found))
        own = found[place] if place < len(found) else Devices(node, (), here, 0, 0)
        found[place : place + 1] = [replace(own, models=own.models + taken)]
    return found


def too_full(
    devices: Sequence[Devices], trainer: TrainerMemory, engine: EngineMemory, session: int, sessions: int = 1
) -> Iterator[str]:
    """Yield a warning for each thing that does not fit."""
    for each in devices:
        if not each.room:
            continue
        if (taken := each.while_training(trainer, engine)) > each.room and each.trainers:
            yield f"{each.name}: a trainer rank computes with {size(taken)} in all, and there are {size(each.room)}"
        if not each.engines:
            continue
        left = each.cache(trainer, engine)
        if left < session * engine.token:
            kept = f" beside the trainer's {size(each.kept(trainer))}" if each.trainers else ""
            has = f"{int(left // engine.token)} tokens of cache" if left > 0 else "no cache"
            yield (
                f"{each.name}: an engine's weights, {size(engine.weights)}, leave {has} of {size(each.room)}{kept}, "
                f"and a session may have {session} tokens"
            )
        elif left < sessions * session * engine.token:
            tokens = int(left // engine.token)
            yield (
                f"{each.name}: an engine's cache holds {tokens} tokens, {tokens // session} of its {sessions} sessions "
                f"of {session} tokens; the others wait"
            )


def size(count: float) -> str:
    """Bytes in words: `1.5 GiB`."""
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.3g} B"

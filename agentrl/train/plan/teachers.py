"""Memory of the policies that an algorithm asks (`algo=distill`), which are beside the trainer in a dry run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.config import START, PolicyConfig, RunConfig
from agentrl.models.registry import cache_folder
from agentrl.rollout.engines import ENGINES
from agentrl.train.plan.devices import Devices, size
from agentrl.train.plan.memory import LOGITS
from agentrl.train.plan.shapes import Shape, shape_of


def teachers_memory(config: RunConfig, student: Shape) -> dict[str, float]:
    """Bytes of each teacher that the run keeps, by its policy's name; one behind a URL takes none here.

    One that reads forests has float32 weights, and the activations of one layer at a time; another engine's are in its
    own precision, without its cache.
    """
    found = {}
    for name in sorted(config.asked_policies):
        own = config.policies[name]
        if not own.remote:
            found[name] = _bytes(own, _shape(own, student), config.trainer.token_budget)
    return found


def _shape(own: PolicyConfig, student: Shape) -> Shape:
    name = own.model.name
    cached = cache_folder() / name
    return student if name == START else shape_of(cached if cached.is_dir() else name)


def _bytes(own: PolicyConfig, shape: Shape, token_budget: int) -> float:
    if not ENGINES.find(own.engine.name).in_process(own.engine):
        return float(shape.parameters) * (4 if own.engine.dtype == "float32" else 2)
    logits = min(LOGITS, 12 * token_budget * shape.vocab_size)
    return 4.0 * shape.parameters + 4.0 * token_budget * (shape.layer_activations + shape.hidden_size) + logits


def with_teachers(
    devices: Sequence[Devices], config: RunConfig, memory: dict[str, float], here: float
) -> list[Devices]:
    """The devices with the teachers on them: the first GPU of the run's node, or the node's own memory.

    Args:
        devices: those of trainer and engines.
        config: the run's.
        memory: of `teachers_memory`.
        here: bytes of this machine's memory.
    """
    found = list(devices)
    for name, count in memory.items():
        on_cpu = config.policies[name].engine.device == "cpu"
        gpus = [] if on_cpu else [each for each in found if each.node == devices[0].node and each.numbers]
        if gpus:
            first = min(gpus, key=lambda each: each.numbers[0])
            place, rest = found.index(first), first.numbers[1:]
            found[place] = replace(first, numbers=first.numbers[:1], teachers=first.teachers + count)
            found[place + 1 : place + 1] = [replace(first, numbers=rest)] if rest else []
            continue
        place = next(
            (i for i, each in enumerate(found) if not each.numbers and each.node == devices[0].node), len(found)
        )
        found[place : place + 1] = [
            replace(each, teachers=each.teachers + count)
            for each in found[place : place + 1] or [Devices(devices[0].node, (), here, 0, 0)]
        ]
    return found


def teacher_lines(memory: dict[str, float]) -> Iterator[str]:
    """A line for each teacher."""
    for name, count in memory.items():
        yield f"memory of the teacher {name}: {size(count)}, from the first step on"

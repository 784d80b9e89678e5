"""Places each part of a run on a node and GPUs: computed before anything is started, all or nothing.

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

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.cluster.base import ClusterNode
from agentrl.cluster.placement.assignment import Assignment, Place, fit_assignment
from agentrl.cluster.placement.demands import LAYOUTS, Demand, Layout, Wanted
from agentrl.errors import ConfigError

__all__ = ["LAYOUTS", "Assignment", "Demand", "Layout", "Place", "Wanted", "fit_assignment", "place"]
MANY_NODES = 6
"""Beyond as many nodes of a kind, messages count them instead of naming each."""
SETTINGS = {
    "engine": "fleet.engines",
    "trainer": "trainer.ranks",
    "environments": "cluster.environments",
    "rewards": "cluster.rewards",
    "gateway": "cluster.gateways",
}
"""The settings that a number of units comes from."""
MOST_PROPOSALS = 3
"""As many proposals are in a message."""
MOST_TRIES = 16
"""As many numbers of colocated engines are tried."""


def place(nodes: Sequence[ClusterNode], wanted: Wanted) -> Assignment:
    """Assign everything that is wanted to nodes and GPUs.

    Args:
        nodes: the cluster, dead nodes too; where it does not matter, the first ones are taken first.
        wanted: what is to be placed.

    Raises:
        ConfigError: it does not fit; the message says what is asked, what is there and what would fit.
    """
    found = fit_assignment(nodes, wanted)
    if found is None:
        raise refusal(nodes, wanted)
    return found


def refusal(nodes: Sequence[ClusterNode], wanted: Wanted) -> ConfigError:
    """The error of what can't be placed."""
    alive = [node for node in nodes if node.alive]
    fits = "; or ".join(nearest(alive, wanted) or _more_nodes(alive, wanted)) or "nothing with such parts"
    demands = "; ".join(map(describe_demand, filter(_counts, wanted.demands)))
    return ConfigError(
        f"layout={wanted.layout} can't be placed. Asked: {demands}. "
        f"There: {has(alive)}. Why: {'; '.join(reasons(alive, wanted))}. What would fit: {fits}"
    )


def _counts(demand: Demand) -> bool:
    return demand.count > 0


def describe_demand(demand: Demand) -> str:
    """A demand in words: `engine: 4 x (2 GPUs of 40 GiB, 1 CPU)`."""
    where = f" on {demand.node}" if demand.node else ""
    return f"{demand.role}: {demand.count} x ({_unit(demand) or 'nothing'}){where}"


def _unit(demand: Demand) -> str:
    """The resources of a unit, in words."""
    each = []
    if demand.gpus:
        each.append(_several(demand.gpus, "GPU") + (f" of {demand.memory:.3g} GiB" if demand.memory else ""))
    if demand.cpus:
        each.append(_several(demand.cpus, "CPU"))
    each += [f"{amount:g} {name}" for name, amount in demand.custom.items()]
    return ", ".join(each)


def has(nodes: Sequence[ClusterNode]) -> str:
    """A cluster in words; many nodes of a kind are counted."""
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        gpus = _several(node.gpus, "GPU") + (f" of {node.gpu_memory:.3g} GiB" if node.gpus and node.gpu_memory else "")
        custom = "".join(f", {amount:g} {name}" for name, amount in node.custom.items())
        kinds.setdefault(f"{gpus}, {_several(node.cpus, 'CPU')}{custom}", []).append(node.name)
    told = (
        f"{', '.join(names) if len(names) <= MANY_NODES else f'{len(names)} nodes ({names[0]} …)'}: {what}"
        for what, names in kinds.items()
    )
    return "; ".join(told) or "no node"


def reasons(nodes: Sequence[ClusterNode], wanted: Wanted) -> list[str]:
    """Return why the units don't fit, as far as one resource or one unit explains that."""
    demands = [demand for demand in wanted.demands if demand.count]
    found = list(dict.fromkeys(reason for demand in demands for reason in _unit_reasons(nodes, demand)))
    own = [replace(d, count=d.count - wanted.shared) if d is wanted.engines else d for d in demands]
    totals: list[tuple[str, float, float]] = [
        ("GPU", sum(d.count * d.gpus for d in own), sum(node.gpus for node in nodes))
    ]
    totals += [("CPU", sum(d.count * d.cpus for d in demands), sum(node.cpus for node in nodes))]
    for name in sorted({name for demand in demands for name in demand.custom}):
        amount = sum(d.count * d.custom.get(name, 0.0) for d in demands)
        totals.append((name, amount, sum(node.custom.get(name, 0.0) for node in nodes)))
    for name, want, there in totals:
        if want > there:
            found.append(f"{_several(want, name)} in all, and there {'is' if there == 1 else 'are'} {there:g}")
    shared, ranks = wanted.shared * wanted.engines.gpus, wanted.trainer.count * wanted.trainer.gpus
    if shared > ranks:
        found.append(f"{wanted.shared} colocated engines need {shared} GPUs of the trainer, which has {ranks}")
    return found or ["there is enough of each in total, but not together on single nodes"]


def _unit_reasons(nodes: Sequence[ClusterNode], demand: Demand) -> Iterator[str]:
    """Reasons why one unit by itself fits on no node."""
    nodes = [node for node in nodes if demand.node in ("", node.name)]
    if not nodes:
        yield f"{demand.role} must be on {demand.node}, which is not there" if demand.node else "no node is alive"
        return
    largest = max(node.gpus for node in nodes)
    if demand.gpus > largest:
        yield f"a unit of {demand.role} needs {_several(demand.gpus, 'GPU')} on one node, and the largest has {largest}"
    cpus = max(node.cpus for node in nodes)
    if demand.cpus > cpus:
        yield f"a unit of {demand.role} needs {_several(demand.cpus, 'CPU')} on one node, and the largest has {cpus:g}"
    for name, amount in demand.custom.items():
        most = max(node.custom.get(name, 0.0) for node in nodes)
        if amount > most:
            yield f"a unit of {demand.role} needs {amount:g} {name} on one node, and the most is {most:g}"
    memory = max((node.gpu_memory for node in nodes if node.gpus), default=0.0)
    if demand.gpus and demand.memory > memory > 0:
        yield f"{demand.role} needs {demand.memory:.3g} GiB on each GPU, and the largest has {memory:.3g} GiB"


def nearest(nodes: Sequence[ClusterNode], wanted: Wanted) -> list[str]:
    """Return what would fit, as settings: by one change if that is enough, else by as few units less as possible."""
    found = [said for said, changed in _other_layouts(nodes, wanted) if fit_assignment(nodes, changed) is not None]
    fewer = ((demand, _largest(nodes, wanted, demand)) for demand in (wanted.engines, *wanted.others, wanted.trainer))
    found = found[:1] + [_setting(demand, number) for demand, number in fewer if 0 < number < demand.count]
    found += [said for said, changed in _smaller_units(wanted) if fit_assignment(nodes, changed) is not None]
    return found[:MOST_PROPOSALS] or _together(nodes, wanted)


def _more_nodes(nodes: Sequence[ClusterNode], wanted: Wanted) -> list[str]:
    """Nodes that would have to join, where units fit on none by themselves: one for each such unit."""
    large = [demand for demand in wanted.demands if demand.count and any(_unit_reasons(nodes, demand))]
    more = [
        ClusterNode(f"{demand.role} {number}", demand.cpus, demand.gpus, demand.custom, gpu_memory=demand.memory)
        for demand in large
        for number in range(demand.count)
    ]
    if any(demand.node for demand in large) or fit_assignment([*nodes, *more], wanted) is None:
        return []
    return [
        " and ".join(
            f"{demand.count} more node{'s' * (demand.count > 1)} with {_unit(demand) or 'anything'}" for demand in large
        )
    ]


def _other_layouts(nodes: Sequence[ClusterNode], wanted: Wanted) -> Iterator[tuple[str, Wanted]]:
    """The same units in other layouts, those with the fewest engines moved first."""
    engines = wanted.engines.count
    if not wanted.trainer.gpus or not wanted.engines.gpus or not engines:
        return
    for number in sorted(range(engines + 1), key=lambda number: abs(number - wanted.shared)):
        if number != wanted.shared and (number in (0, engines) or number <= MOST_TRIES):
            changed = _sharing(wanted, number)
            yield _layout_setting(changed), changed


def _sharing(wanted: Wanted, number: int) -> Wanted:
    """The same with so many engines on the trainer's GPUs."""
    if number in (0, wanted.engines.count):
        return replace(wanted, layout="colocated" if number else "disaggregated", colocated_engines=None)
    return replace(wanted, layout="mixed", colocated_engines=number)


def _layout_setting(wanted: Wanted) -> str:
    if wanted.layout == "mixed":
        number = wanted.shared
        return f"layout=mixed with {number} colocated engines (fleet.colocated=true fleet.colocated_engines={number})"
    return f"layout={wanted.layout} (fleet.colocated={str(wanted.layout == 'colocated').lower()})"


def _smaller_units(wanted: Wanted) -> Iterator[tuple[str, Wanted]]:
    """Units of half as many GPUs, a quarter and so on, where nothing is known of the memory that they need."""
    for gpus in _halves(wanted.engines):
        engines = replace(wanted.engines, gpus=gpus)
        yield f"engines of {_several(gpus, 'GPU')} each", replace(wanted, engines=engines)
    for gpus in _halves(wanted.trainer):
        number = wanted.trainer.gpus // gpus
        trainer = replace(
            wanted.trainer, gpus=gpus, count=wanted.trainer.count * number, cpus=wanted.trainer.cpus / number
        )
        yield f"trainer.tensor_parallel={gpus}", replace(wanted, trainer=trainer)


def _halves(demand: Demand) -> Iterator[int]:
    gpus = demand.gpus
    while gpus > 1 and gpus % 2 == 0 and not demand.memory:
        gpus //= 2
        yield gpus


def _largest(nodes: Sequence[ClusterNode], wanted: Wanted, demand: Demand) -> int:
    """The most units of a demand that fit beside the others; 0 where none does."""
    low, high = 0, demand.count
    while low < high:
        middle = (low + high + 1) // 2
        if fit_assignment(nodes, _with(wanted, demand.role, middle)) is not None:
            low = middle
        else:
            high = middle - 1
    return low


def _with(wanted: Wanted, role: str, number: int) -> Wanted:
    """The same with another number of a role's units; of engines in a mixed layout, at least one is apart."""
    if role == wanted.trainer.role:
        return replace(wanted, trainer=replace(wanted.trainer, count=number))
    if role == wanted.engines.role:
        shared = number if wanted.layout == "colocated" else min(wanted.shared, max(number - 1, 0))
        layout = wanted.layout if wanted.layout != "mixed" or shared else "disaggregated"
        own = shared if layout == "mixed" else None
        return replace(wanted, engines=replace(wanted.engines, count=number), layout=layout, colocated_engines=own)
    others = tuple(replace(each, count=number) if each.role == role else each for each in wanted.others)
    return replace(wanted, others=others)


def _together(nodes: Sequence[ClusterNode], wanted: Wanted) -> list[str]:
    """Several changes at once: of the layout, of units that fit on no node, and of numbers, which are then raised."""
    starts = [("", wanted), *_smaller_units(wanted)]
    starts += [(f"{one} {two}", last) for one, each in starts[1:] for two, last in _smaller_units(each) if one != two]
    for said, start in starts:
        for number in dict.fromkeys((wanted.shared, wanted.engines.count, 0)):
            if number and not (wanted.trainer.gpus and wanted.engines.gpus):
                continue
            found = _grow(nodes, _sharing(start, number))
            if found is not None:
                layout = "" if found.layout == wanted.layout else _layout_setting(found)
                pairs = zip(start.demands, found.demands, strict=True)
                fewer = [_setting(now, now.count) for before, now in pairs if now.count != before.count]
                return [" ".join(filter(None, (layout, said, *fewer)))]
    return []


def _grow(nodes: Sequence[ClusterNode], wanted: Wanted) -> Wanted | None:
    """One unit of each, then as many as fit, the trainer's first; None where one of each does not fit."""
    found = wanted
    for demand in wanted.demands:
        if demand.count:
            found = _with(found, demand.role, 1)
    if fit_assignment(nodes, found) is None:
        return None
    for demand in wanted.demands:
        most = _with(found, demand.role, demand.count)
        if demand.count > 1:
            found = _with(found, demand.role, max(_largest(nodes, most, demand), 1))
    return found


def _setting(demand: Demand, number: int) -> str:
    """A number of a role's units as the setting that gives it."""
    amount = number * (demand.gpus or 1) if demand.role == "trainer" else number
    return f"{SETTINGS[demand.role]}={amount}" if demand.role in SETTINGS else f"{number} x {demand.role}"


def _several(count: float, name: str) -> str:
    return f"{count:g} {name}" + ("" if count == 1 or not name.isupper() else "s")

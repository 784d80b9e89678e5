"""Placement: exact, for random clusters and demands; impossible layouts are refused with what would fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.cluster import ClusterNode
from agentrl.cluster.placement.nodes import node_name
from agentrl.cluster.placement.plan import LAYOUTS, Assignment, Demand, Wanted, fit_assignment, nearest, place
from agentrl.errors import ConfigError, InvalidInput

COUNTS = st.integers(0, 3)


@st.composite
def clusters(draw: st.DrawFn) -> list[ClusterNode]:
    return [
        ClusterNode(
            f"node-{i}",
            draw(st.sampled_from([0.0, 1.0, 2.5, 4.0])),
            draw(st.integers(0, 5)),
            draw(st.sampled_from([{}, {"sandbox": 1.0}, {"sandbox": 2.0}])),
            draw(st.sampled_from([True, True, True, False])),
            gpu_memory=draw(st.sampled_from([0.0, 24.0, 80.0])),
        )
        for i in range(draw(st.integers(1, 3)))
    ]


@st.composite
def demands(draw: st.DrawFn, role: str, most_gpus: int, least: int = 0, nodes: int = 0) -> Demand:
    return Demand(
        role,
        draw(st.integers(least, 3)),
        draw(st.integers(least, most_gpus)),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
        draw(st.sampled_from([0.0, 30.0])) if most_gpus else 0.0,
        draw(st.sampled_from([{}, {"sandbox": 1.0}])) if not most_gpus else {},
        draw(st.sampled_from(["", "node-0"])) if nodes else "",
    )


@st.composite
def wishes(draw: st.DrawFn) -> Wanted:
    layout = draw(st.sampled_from(LAYOUTS))
    least = int(layout != "disaggregated")
    trainer = draw(demands("trainer", 4, least))
    engines = draw(demands("engine", 4, least))
    others = (draw(demands("environments", 0)), draw(demands("gateway", 0, nodes=1)))
    if layout == "mixed":
        engines = replace(engines, count=max(engines.count, 2))
        return Wanted(trainer, engines, others, layout, draw(st.integers(1, engines.count - 1)))
    return Wanted(trainer, engines, others, layout)


def exists(nodes: list[ClusterNode], wanted: Wanted) -> bool:
    """Whether any way of giving each unit a node keeps all limits, tried one by one."""
    nodes = [node for node in nodes if node.alive]
    units = [(demand, False) for demand in wanted.demands for _ in range(demand.count)]
    engines = [i for i, (demand, _) in enumerate(units) if demand is wanted.engines]
    for i in engines[: wanted.shared]:
        units[i] = (wanted.engines, True)

    def fits(node: ClusterNode, here: list[tuple[Demand, bool]]) -> bool:
        own = sum(demand.gpus for demand, shared in here if not shared)
        on_trainer = sum(demand.gpus for demand, shared in here if shared)
        trained = sum(demand.gpus for demand, _ in here if demand.role == "trainer")
        memory = all(not d.gpus or not node.gpu_memory or d.memory <= node.gpu_memory for d, _ in here)
        return (
            own <= node.gpus
            and on_trainer <= trained
            and sum(demand.cpus for demand, _ in here) <= node.cpus
            and sum(demand.custom.get("sandbox", 0) for demand, _ in here) <= node.custom.get("sandbox", 0)
            and memory
            and all(demand.node in ("", node.name) for demand, _ in here)
        )

    for choice in product(range(len(nodes)), repeat=len(units)):
        if all(fits(node, [units[u] for u, at in enumerate(choice) if at == n]) for n, node in enumerate(nodes)):
            return True
    return False


def check(nodes: list[ClusterNode], wanted: Wanted, found: Assignment) -> None:
    """All units have a place, no device has two, and each is on a node that has what it takes."""
    by_name = {node.name: node for node in nodes if node.alive}
    assert Counter(place.role for place in found.places) == Counter(
        {demand.role: demand.count for demand in wanted.demands if demand.count}
    )
    for demand in wanted.demands:
        own = found.of(demand.role)
        assert sorted(place.number for place in own) == list(range(demand.count))
        assert all(len(place.devices) == demand.gpus for place in own)  # all on one node: a place has one
    assert sum(place.colocated for place in found.places) == wanted.shared
    for name, node in by_name.items():
        here = found.on(name)
        own = [device for place in here if not place.colocated for device in place.devices]
        shared = [device for place in here if place.colocated for device in place.devices]
        trained = {device for place in here if place.role == "trainer" for device in place.devices}
        assert len(own) == len(set(own))
        assert len(shared) == len(set(shared))
        assert set(shared) <= trained
        assert set(own) <= set(range(node.gpus))
        assert set(found.idle(node)) == set(range(node.gpus)) - set(own)
    assert {place.node for place in found.places} <= set(by_name)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(clusters(), wishes())
def test_what_is_feasible_is_placed_and_nothing_else(nodes: list[ClusterNode], wanted: Wanted) -> None:
    units = sum(demand.count for demand in wanted.demands)
    if len(nodes) ** units > 3**8:
        wanted = replace(wanted, others=())
    found = fit_assignment(nodes, wanted)
    assert (found is not None) == exists(nodes, wanted)
    if found is not None:
        check(nodes, wanted, found)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 16), st.integers(0, 8), st.integers(0, 40), st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]), st.booleans(),
)  # fmt: skip
@pytest.mark.slow
def test_larger_clusters_keep_the_same_limits(
    nodes: int, groups: int, engines: int, workers: int, tensor: int, each: int, colocated: bool
) -> None:
    cluster = [ClusterNode(f"node-{i}", 16.0, 8) for i in range(nodes)]
    layout = "colocated" if colocated else "disaggregated"
    others = (Demand("environments", workers, cpus=1.0),)
    wanted = Wanted(Demand("trainer", groups, tensor), Demand("engine", engines, each), others, layout)
    found = fit_assignment(cluster, wanted)
    if found is not None:
        check(cluster, wanted, found)
        spread = Counter(place.node for place in found.of("environments"))
        assert max(spread.values(), default=0) - min((spread[node.name] for node in cluster), default=0) <= 1
    # sizes that divide a node's 8 GPUs leave no rest, so totals alone decide
    gpus = groups * tensor + (0 if colocated else engines * each)
    room = not colocated or engines * each <= groups * tensor
    if gpus > 8 * nodes or not room or workers > 16 * nodes:
        assert found is None
    elif not colocated or each <= tensor:
        assert found is not None


def test_roles_of_several_units_are_spread_and_the_trainer_is_kept_together() -> None:
    nodes = [ClusterNode(f"node-{i}", 8.0, 8) for i in range(4)]
    found = place(nodes, Wanted(Demand("trainer", 4, 4), Demand("engine", 8, 2), (Demand("environments", 8, cpus=1),)))
    assert {each.node for each in found.of("trainer")} == {"node-0", "node-1"}
    assert Counter(each.node for each in found.of("environments")) == dict.fromkeys((n.name for n in nodes), 2)


def test_nodes_of_one_machine_have_names_of_their_own_and_one_name_hides_no_place() -> None:
    """Ray's local autoscaler gives ids that begin alike: what was placed on the first such node had no place at all."""
    first, second = (node_name("10.0.0.7", f"{'f' * 51}{number:05d}") for number in (0, 1))
    assert first != second
    wanted = Wanted(trainer(0), engines(0), (workers(3),))
    assert place([ClusterNode("a", 3.0, 0), ClusterNode("a", 2.0, 0)], wanted).counts() == {"environments": 3}


SMALL = [ClusterNode("a", 8.0, 4), ClusterNode("b", 8.0, 4)]
MEMORY = [replace(node, gpu_memory=80.0) for node in SMALL]
CPUS = [ClusterNode("a", 4.0, 0), ClusterNode("b", 4.0, 0, {"sandbox": 2.0})]
DEAD = [ClusterNode("a", 8.0, 4), ClusterNode("b", 8.0, 4, alive=False)]


def trainer(ranks: int, tensor: int = 1, **more: float) -> Demand:
    return Demand("trainer", ranks // tensor, tensor, **more)  # type: ignore[arg-type]


def engines(count: int, gpus: int = 1, **more: float) -> Demand:
    return Demand("engine", count, gpus, **more)  # type: ignore[arg-type]


def workers(count: int, cpus: float = 1.0, sandbox: float = 0.0) -> Demand:
    return Demand("environments", count, cpus=cpus, custom={"sandbox": sandbox} if sandbox else {})


APART, SHARED = "disaggregated", "colocated"
WRONG: list[tuple[list[ClusterNode], Wanted, str, str]] = [
    (SMALL, Wanted(trainer(8), engines(1)), "9 GPUs in all, and there are 8", "layout=colocated"),
    (SMALL, Wanted(trainer(8), engines(2)), "10 GPUs in all", "2 colocated engines|layout=colocated"),
    (SMALL, Wanted(trainer(4), engines(5)), "9 GPUs in all", "fleet.engines=4"),
    (SMALL, Wanted(trainer(4, 4), engines(2, 4)), "12 GPUs in all", "fleet.engines=1"),
    (SMALL, Wanted(trainer(8, 8), engines(1)), "trainer needs 8 GPUs on one node, and the largest has 4", "parallel=4"),
    (SMALL, Wanted(trainer(4), engines(1, 8)), "engine needs 8 GPUs on one node", "engines of 4 GPUs"),
    (SMALL, Wanted(trainer(2, 2), engines(2, 3)), "not together on single nodes", "fleet.engines=1"),
    (SMALL, Wanted(trainer(6, 3), engines(1, 2)), "not together on single nodes", "layout=colocated"),
    (SMALL, Wanted(trainer(12), engines(0)), "12 GPUs in all", "trainer.ranks=8"),
    (SMALL, Wanted(trainer(16, 4), engines(4, 4)), "32 GPUs in all", "trainer.ranks=4 fleet.engines=1|colocated"),
    (SMALL, Wanted(trainer(4), engines(5), layout=SHARED), "5 GPUs of the trainer, which has 4", "fleet.engines=4"),
    (SMALL, Wanted(trainer(4), engines(2, 3), layout=SHARED), "6 GPUs of the trainer, which has 4", "fleet.engines=1"),
    (SMALL, Wanted(trainer(4, 2), engines(1, 8), layout=SHARED), "engine needs 8 GPUs on one node", "engines of 4"),
    (SMALL, Wanted(trainer(9), engines(2), layout=SHARED), "9 GPUs in all", "trainer.ranks=8"),
    (SMALL, Wanted(trainer(6, 3), engines(2, 4), layout=SHARED), "8 GPUs of the trainer", "engines of 2 GPUs"),
    (SMALL, Wanted(trainer(8), engines(4), (), "mixed", 2), "10 GPUs in all", "colocated"),
    (SMALL, Wanted(trainer(2), engines(4, 2), (), "mixed", 2), "4 GPUs of the trainer, which has 2", "1 colocated"),
    (SMALL, Wanted(trainer(4), engines(9), (), "mixed", 4), "9 GPUs in all", "fleet.engines=8"),
    (MEMORY, Wanted(trainer(4, memory=100), engines(1)), "trainer needs 100 GiB on each GPU", "4 more nodes"),
    (MEMORY, Wanted(trainer(4), engines(1, memory=96.5)), "engine needs 96.5 GiB .* the largest has 80", "1 more node"),
    (MEMORY, Wanted(trainer(4, memory=70), engines(5, memory=60)), "9 GPUs", "fleet.engines=4"),
    (CPUS, Wanted(trainer(1), engines(1)), "trainer needs 1 GPU on one node, and the largest has 0", "1 more node"),
    (CPUS, Wanted(trainer(0), engines(0), (workers(9),)), "9 CPUs in all, and there are 8", "environments=8"),
    (CPUS, Wanted(trainer(0), engines(0), (workers(1, 6.0),)), "environments needs 6 CPUs on one node", "1 more node"),
    (CPUS, Wanted(trainer(0), engines(0), (workers(3, 3.0),)), "9 CPUs in all", "cluster.environments=2"),
    (CPUS, Wanted(trainer(0), engines(0), (workers(3, 1.0, 1.0),)), "3 sandbox in all, .* 2", "environments=2"),
    (CPUS, Wanted(trainer(0), engines(0), (workers(1, 1.0, 3.0),)), "3 sandbox on one node, and the most is 2", "more"),
    (CPUS, Wanted(trainer(0), engines(0), (workers(2, 2.5, 1.0),)), "not together on single nodes", "environments=1"),
    (DEAD, Wanted(trainer(4), engines(1)), "5 GPUs in all, and there are 4", "layout=colocated"),
    (SMALL, Wanted(trainer(1), engines(1), (Demand("gateway", 1, node="c"),)), "gateway must be on c", "nothing"),
    ([], Wanted(trainer(1), engines(1)), "no node is alive", "1 more node with 1 GPU"),
    (SMALL, Wanted(trainer(4), engines(4), (workers(17),)), "17 CPUs in all", "cluster.environments=16"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "wanted", "reason", "fits"), WRONG)
def test_an_impossible_layout_is_refused_with_what_is_asked_what_is_there_and_what_would_fit(
    nodes: list[ClusterNode], wanted: Wanted, reason: str, fits: str
) -> None:
    with pytest.raises(ConfigError, match=rf"Asked: .*There: .*Why: .*(?:{reason}).*What would fit: .*(?:{fits})"):
        place(nodes, wanted)


def test_thirty_layouts_are_refused() -> None:
    assert len(WRONG) >= 30


@settings(max_examples=30, deadline=None)
@given(clusters(), wishes())
@pytest.mark.slow
def test_where_one_of_each_fits_a_refusal_has_a_proposal(nodes: list[ClusterNode], wanted: Wanted) -> None:
    alive = [node for node in nodes if node.alive]
    if fit_assignment(alive, wanted) is None and not wanted.shared:
        one = replace(
            wanted,
            trainer=replace(wanted.trainer, count=min(wanted.trainer.count, 1)),
            engines=replace(wanted.engines, count=min(wanted.engines.count, 1)),
            others=tuple(replace(each, count=min(each.count, 1)) for each in wanted.others),
        )
        assert bool(nearest(alive, wanted)) or fit_assignment(alive, one) is None


def test_parts_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"layout='apart' is none of: disaggregated, colocated, mixed"):
        Wanted(trainer(1), engines(1), layout="apart")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"layout=colocated shares GPUs, and trainer has none"):
        Wanted(Demand("trainer", 1), engines(1), layout="colocated")
    with pytest.raises(InvalidInput, match=r"colocated_engines from 1 to 1 \(of 2 engines\), not 2"):
        Wanted(trainer(2), engines(2), (), "mixed", 2)
    with pytest.raises(InvalidInput, match=r"colocated_engines=1 is for layout=mixed"):
        Wanted(trainer(2), engines(2), (), "colocated", 1)
    with pytest.raises(InvalidInput, match=r"environments: cpus=-1 must not be negative"):
        workers(1, -1.0)

"""Which places of a placement group are free: no more workers in one than it has room for, none on a dead node."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cluster import Resources, Role
from agentrl.cluster.placement.assignment import Assignment, Place
from agentrl.cluster.placement.bundles import Bundles

NODES, ROLES = ("a", "b", "c"), ("trainer", "engine")
PLACES = st.lists(st.tuples(st.sampled_from(ROLES), st.sampled_from(NODES)), max_size=6)
WORDS = st.lists(st.tuples(st.booleans(), st.sampled_from(ROLES), st.integers(0, 20)), max_size=20)


def bundles(places: list[tuple[str, str]], size: int) -> Bundles:
    assignment = Assignment(tuple(Place(role, number, node) for number, (role, node) in enumerate(places)))
    return Bundles(assignment, {"trainer": size})


@given(PLACES, st.integers(1, 3), st.sets(st.sampled_from(NODES)), WORDS)
@pytest.mark.slow
def test_a_place_holds_as_many_as_it_has_room_for_and_none_on_a_dead_node(
    places: list[tuple[str, str]], size: int, alive: set[str], words: list[tuple[bool, str, int]]
) -> None:
    ours, inside = bundles(places, size), list[tuple[str, int]]()
    room = {"trainer": size, "engine": 1}
    for taking, role, which in words:
        if taking:
            free = ours.available(role, room[role], alive)
            number = ours.take(role, alive)
            assert (number is None) == (free == 0)
            if number is not None:
                assert (places[number][0], ours.node(number)) == (role, places[number][1])
                assert ours.node(number) in alive
                inside.append((role, number))
        elif inside:
            ours.free(inside.pop(which % len(inside))[1])
        held = Counter(inside)
        assert all(count <= room[role] for (role, _), count in held.items())
        for each in ROLES:
            living = sum(room[each] for kind, node in places if kind == each and node in alive)
            taken = sum(count for (kind, _), count in held.items() if kind == each)
            assert ours.available(each, room[each], alive) == living - taken


def test_consecutive_workers_fill_a_place_before_the_next_one() -> None:
    ours = bundles([("trainer", "a"), ("trainer", "b")], 2)
    assert [ours.take("trainer", set(NODES)) for _ in range(5)] == [0, 0, 1, 1, None]
    ours.free(1)
    ours.free(0)
    assert [ours.take("trainer", set(NODES)) for _ in range(2)] == [0, 1]


def test_workers_that_share_places_otherwise_find_none() -> None:
    ours = bundles([("trainer", "a"), ("trainer", "b")], 2)
    assert ours.available("trainer", 2, {"a"}) == 2
    assert ours.available("trainer", 4, {"a"}) == 0
    assert ours.available("gateway", 1, {"a"}) == 0


def test_a_colocated_engine_finds_its_own_places_and_the_gpus_of_the_trainers_places_on_its_node() -> None:
    trainer = Place("trainer", 0, "a", (0, 1)), Place("trainer", 1, "a", (2, 3)), Place("trainer", 2, "b", (0, 1))
    engines = Place("engine", 1, "a", (4, 5)), Place("engine", 0, "a", (1, 2), colocated=True)
    ours = Bundles(Assignment((*trainer, *engines)), {}, {0: ("5", "7"), 1: ("0", "2"), 2: ("1", "3")})
    role = Role("engine", "module:Class", resources=Resources(cpus=1, gpus=2), environment={"A": "b"})
    assert ours.take("engine", set(NODES), colocated=True) == 4
    assert ours.take("engine", set(NODES), colocated=True) is None
    inside = ours.started_in(4, role)
    assert (inside.resources, inside.environment) == (Resources(cpus=1), {"A": "b", "CUDA_VISIBLE_DEVICES": "7,0"})
    assert ours.take("engine", set(NODES)) == 3
    assert ours.started_in(3, role) == role
    ours.free(4)
    assert ours.take("engine", set(NODES), colocated=True) == 4

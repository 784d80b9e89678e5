import random
from itertools import product

import pytest

from solve import Index, NoSolution, resolve
from solve.index import fits, parse_need


def index_of(*lines):
    return Index("\n".join(lines))


def test_the_index_of_the_report():
    index = index_of("web 1: core", "web 2: core>=2", "db 2: core<2", "core 1", "core 2")
    assert resolve(index, ["web", "db"]) == {"core": 1, "db": 2, "web": 1}


def test_nothing_that_is_not_needed():
    index = index_of("a 1", "a 2: helper, b==9", "helper 1", "b 1")
    assert resolve(index, ["a"]) == {"a": 1}


def test_a_dead_end_further_down():
    index = index_of("a 2: b", "a 1: b<2", "b 2: c==9", "b 1", "c 1")
    assert resolve(index, ["a"]) == {"a": 2, "b": 1}


def test_packages_that_need_each_other():
    index = index_of("a 1: b", "b 1: a")
    assert resolve(index, ["a"]) == {"a": 1, "b": 1}


def brute_force(packages, wanted):
    """Whether any choice of versions meets all needs."""
    names = sorted(packages)
    for versions in product(*([None, *packages[name]] for name in names)):
        chosen = {name: version for name, version in zip(names, versions) if version}
        needs = [parse_need(w) for w in wanted] + [parse_need(n) for p, v in chosen.items() for n in packages[p][v]]
        if all(need[0] in chosen and fits(chosen[need[0]], need) for need in needs):
            return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_a_solution_is_found_where_there_is_one(seed):
    rng = random.Random(seed)
    for _ in range(40):
        packages = {
            name: {v: [rng.choice("abcd") + rng.choice([">=2", "<2", "==1", ""]) for _ in range(rng.randrange(3))] for v in (1, 2)}
            for name in "abcd"
        }
        lines = [f"{name} {v}: {', '.join(needs)}" for name, vs in packages.items() for v, needs in vs.items()]
        possible = brute_force(packages, ["a", "b"])
        try:
            found = resolve(index_of(*lines), ["a", "b"])
        except NoSolution:
            assert possible is False
        else:
            assert possible is True
            assert all(fits(found[n[0]], n) for p, v in found.items() for n in map(parse_need, packages[p][v]))

import pytest

from build import Cycle, order
from build.lock import lock


def test_a_dependency_named_twice():
    assert order({"app": ["lib", "lib"], "lib": []}) == ["lib", "app"]
    assert lock("app: lib\napp: lib\n") == "1. lib\n2. app\n"


def test_alphabetical_where_there_is_a_choice():
    assert order({name: [] for name in "fbdace"}) == list("abcdef")
    assert order({"b": ["z"], "a": [], "y": ["a"]}) == ["a", "y", "z", "b"]


def test_only_the_cycle_is_named():
    with pytest.raises(Cycle) as caught:
        order({"app": ["x"], "x": ["y"], "y": ["w"], "w": ["x"], "ok": []})
    assert caught.value.members == ["w", "x", "y"]
    assert str(caught.value) == "w -> x -> y -> w"


def test_a_package_that_needs_itself():
    with pytest.raises(Cycle) as caught:
        order({"a": ["a", "a"], "b": ["a"]})
    assert caught.value.members == ["a"]


def test_everything_comes_after_what_it_needs():
    needs = {f"p{i}": [f"p{j}" for j in range(i) if (i * 7 + j) % 3 == 0] for i in range(30)}
    done = order(needs)
    assert all(done.index(other) < done.index(name) for name, wanted in needs.items() for other in wanted)

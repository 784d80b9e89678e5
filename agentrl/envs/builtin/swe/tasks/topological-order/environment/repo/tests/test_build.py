import pytest

from build import Cycle, order
from build.lock import lock, parse


def test_a_chain():
    assert order({"c": ["b"], "b": ["a"]}) == ["a", "b", "c"]


def test_a_circle():
    with pytest.raises(Cycle):
        order({"a": ["b"], "b": ["a"]})


def test_a_lock_file():
    assert lock("app: lib # comment\nlib: core\n") == "1. core\n2. lib\n3. app\n"


def test_parsing():
    assert parse("a: b, c\na: d\nx:\n") == {"a": ["b", "c", "d"], "x": []}

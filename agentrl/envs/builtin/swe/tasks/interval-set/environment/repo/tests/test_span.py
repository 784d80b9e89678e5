import pytest

from span import IntervalSet


def test_apart():
    assert list(IntervalSet([(5, 6), (1, 2)])) == [(1, 2), (5, 6)]


def test_side_by_side():
    assert list(IntervalSet([(1, 2), (2, 3)])) == [(1, 3)]


def test_membership():
    some = IntervalSet([(1, 2), (4, 6)])
    assert [n for n in range(8) if n in some] == [1, 4, 5]


def test_removing_an_end():
    some = IntervalSet([(1, 5)])
    some.remove(4, 9)
    assert list(some) == [(1, 4)]


def test_backwards():
    with pytest.raises(ValueError):
        IntervalSet([(2, 1)])

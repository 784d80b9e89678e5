from itertools import product

from span import IntervalSet


def test_one_that_covers_several():
    assert list(IntervalSet([(9, 10), (13, 14), (8, 15)])) == [(8, 15)]


def test_one_that_joins_two():
    assert list(IntervalSet([(1, 3), (5, 7), (3, 5)])) == [(1, 7)]


def test_removing_the_middle():
    some = IntervalSet([(9, 17)])
    some.remove(11, 12)
    assert list(some) == [(9, 11), (12, 17)]
    assert some.length == 7


def test_removing_all():
    some = IntervalSet([(9, 10), (12, 13)])
    some.remove(9, 10)
    assert list(some) == [(12, 13)]
    some.remove(0, 99)
    assert list(some) == []


def test_gaps():
    assert list(IntervalSet([(9, 10), (12, 13)]).gaps(8, 14)) == [(8, 9), (10, 12), (13, 14)]


def test_like_a_set_of_numbers():
    pairs = [(a, b) for a, b in product(range(6), repeat=2) if a < b]
    for one, two, three in product(pairs[::2], pairs[::3], pairs[::4]):
        some = IntervalSet([one, two])
        some.remove(*three)
        expected = (set(range(*one)) | set(range(*two))) - set(range(*three))
        assert {n for n in range(7) if n in some} == expected
        assert some.length == len(expected)

import pytest

from limit import Bucket, Clients


@pytest.mark.parametrize("pause", [1, 7, 30, 50, 100])
def test_the_rate_does_not_depend_on_how_often_one_tries(pause):
    bucket = Bucket(rate=10, capacity=5)
    taken = sum(bucket.take(now) for now in range(0, 10_001, pause))
    assert min(taken, 100) == 100


def test_fractions_are_kept():
    bucket = Bucket(rate=10, capacity=1)
    assert bucket.take(0)
    assert [bucket.take(now) for now in (30, 60, 90, 99, 100)] == [False, False, False, False, True]


def test_the_wait_is_long_enough_and_not_longer():
    bucket = Bucket(rate=3, capacity=1)
    bucket.take(0)
    assert bucket.wait_time(0) == 334
    assert not bucket.take(333)
    assert bucket.wait_time(333) == 1
    assert bucket.take(334)


def test_what_can_never_succeed():
    bucket = Bucket(rate=10, capacity=5)
    assert bucket.wait_time(0, count=6) is None
    assert bucket.wait_time(0, count=5) == 0


def test_no_more_than_the_capacity():
    bucket = Bucket(rate=10, capacity=2)
    assert [bucket.take(60_000) for _ in range(3)] == [True, True, False]


def test_full_buckets_are_forgotten():
    clients = Clients(rate=10, capacity=2)
    clients.allow("a", 0)
    clients.allow("b", 90)
    assert clients.forget(50) == 0
    assert clients.forget(100) == 1
    assert len(clients) == 1

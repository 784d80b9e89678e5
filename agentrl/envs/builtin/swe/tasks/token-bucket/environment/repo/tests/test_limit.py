import pytest

from limit import Bucket, Clients


def test_a_burst():
    bucket = Bucket(rate=1, capacity=3)
    assert [bucket.take(0) for _ in range(4)] == [True, True, True, False]


def test_a_token_a_second():
    bucket = Bucket(rate=1, capacity=1)
    assert bucket.take(0)
    assert not bucket.take(500)
    bucket = Bucket(rate=1, capacity=1)
    bucket.take(0)
    assert bucket.take(1000)


def test_clients_have_buckets_of_their_own():
    clients = Clients(rate=1, capacity=1)
    assert clients.allow("a", 0)
    assert clients.allow("b", 0)
    assert not clients.allow("a", 0)


def test_wrong_numbers():
    with pytest.raises(ValueError):
        Bucket(0, 1)

import pytest

from serve import Unsatisfiable, parse, respond

DATA = bytes(range(100))


def test_a_whole_file():
    status, headers, body = respond(DATA)
    assert (status, headers["Content-Length"], body) == (200, "100", DATA)


def test_from_the_middle_on():
    status, _, body = respond(DATA, "bytes=90-")
    assert (status, body) == (206, DATA[90:])


def test_the_last_bytes():
    assert parse("bytes=-10", 100) == [(90, 100)]


def test_behind_the_end():
    with pytest.raises(Unsatisfiable):
        parse("bytes=100-", 100)


def test_another_unit():
    assert parse("lines=1-2", 100) is None

import pytest

from serve import parse, respond

DATA = bytes(range(100))


def test_both_ends_are_included():
    status, headers, body = respond(DATA, "bytes=0-9")
    assert (status, headers["Content-Range"], body) == (206, "bytes 0-9/100", DATA[:10])


def test_a_single_byte():
    assert parse("bytes=5-5", 100) == [(5, 6)]


def test_an_end_behind_the_end():
    assert parse("bytes=90-500", 100) == [(90, 100)]


def test_more_last_bytes_than_there_are():
    status, headers, body = respond(DATA, "bytes=-500")
    assert (status, headers["Content-Range"], body) == (206, "bytes 0-99/100", DATA)


def test_pieces_make_a_whole():
    pieces = [respond(DATA, f"bytes={at}-{at + 32}")[2] for at in range(0, 100, 33)]
    assert b"".join(pieces) == DATA


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=-0", "bytes=200-300"])
def test_refusals_name_the_length(header):
    status, headers, body = respond(DATA, header)
    assert (status, headers["Content-Range"], body) == (416, "bytes */100", b"")


@pytest.mark.parametrize("header", ["bytes=-", "bytes=x-y", "bytes=9-3", "bytes=", "bytes=1"])
def test_what_means_nothing_is_ignored(header):
    assert respond(DATA, header)[0] == 200


def test_several_ranges():
    status, headers, body = respond(DATA, "bytes=0-1, 98-")
    assert status == 206
    assert b"Content-Range: bytes 0-1/100\r\n\r\n\x00\x01\r\n" in body
    assert b"Content-Range: bytes 98-99/100\r\n\r\nbc\r\n" in body

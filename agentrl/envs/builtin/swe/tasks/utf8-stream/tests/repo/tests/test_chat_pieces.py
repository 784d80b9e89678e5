import pytest

from chat import LineReader, messages

TEXT = "10:00 <j\u00fcrgen> \U0001f600 gr\u00fc\u00dfe\r\n10:01 <ada> \u20ac\n"


def lines(pieces):
    reader = LineReader()
    found = [line for piece in pieces for line in reader.feed(piece)]
    return found + reader.finish()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_pieces_of_any_size(size):
    data = TEXT.encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [m.text for m in messages(pieces)] == ["\U0001f600 gr\u00fc\u00dfe", "\u20ac"]


def test_a_cut_within_the_end_of_a_line():
    assert lines([b"a\r", b"\nb\r\n"]) == ["a", "b"]


def test_a_carriage_return_alone():
    assert lines([b"a\r", b"b\r", b"\r", b"\n"]) == ["a", "b", ""]
    assert lines([b"a\r"]) == ["a"]


def test_unfinished_bytes_at_the_end():
    assert lines(["\u20ac".encode()[:2]]) == ["\ufffd"]


def test_wrong_bytes_are_replaced():
    assert lines([b"a\xffb\n", b"c"]) == ["a\ufffdb", "c"]

import pytest

from words import join, split


def test_words():
    assert split("ls  -l 'my file' \"your file\"") == ["ls", "-l", "my file", "your file"]


def test_pieces_of_a_word():
    assert split("a''b 'x'\"y\"z") == ["ab", "xyz"]


def test_backslashes_outside():
    assert split(r"my\ file \#1 # comment") == ["my file", "#1"]


def test_open_marks():
    for line in ("'abc", '"abc', "abc\\"):
        with pytest.raises(ValueError):
            split(line)


def test_joining():
    assert join(["ls", "my file"]) == "ls 'my file'"

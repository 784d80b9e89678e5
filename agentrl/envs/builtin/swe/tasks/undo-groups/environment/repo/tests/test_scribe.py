import pytest

from scribe import Document


def test_undo_and_redo():
    document = Document("hello")
    document.insert(5, " world")
    document.replace(0, 1, "J")
    assert document.text == "Jello world"
    assert document.undo() and document.undo()
    assert document.text == "hello"
    assert not document.undo()
    assert document.redo()
    assert document.text == "hello world"


def test_replace_all():
    document = Document("a-b-c")
    assert document.replace_all("-", "+") == 2
    assert document.text == "a+b+c"


def test_beyond_the_end():
    with pytest.raises(IndexError):
        Document("abc").replace(2, 2, "")

import pytest

from sheet import SheetError, read, write


def test_plain_records():
    assert read("a,b\nc,d\n") == [["a", "b"], ["c", "d"]]


def test_a_comma_inside_quotation_marks():
    assert read('"a,b",c') == [["a,b", "c"]]


def test_a_doubled_quotation_mark():
    assert read('"12"" pipe",3\n') == [['12" pipe', "3"]]


def test_open_quotation_marks():
    with pytest.raises(SheetError):
        read('"abc')


def test_writing_quotes_what_has_to_be():
    assert write([["a,b", 'say "x"', 1]]) == '"a,b","say ""x""",1\n'

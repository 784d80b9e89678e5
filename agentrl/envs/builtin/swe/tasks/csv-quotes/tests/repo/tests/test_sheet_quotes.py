import pytest

from sheet import SheetError, read, write


def test_a_field_that_ends_in_a_quotation_mark():
    assert read('"pipe 12""",3\nnext,4\n') == [['pipe 12"', "3"], ["next", "4"]]


def test_a_field_of_nothing_but_quotation_marks():
    assert read('"""""",x\n') == [['""', "x"]]


def test_records_of_empty_fields_are_records():
    assert read('"",""\n,\n') == [["", ""], ["", ""]]


def test_a_single_empty_quoted_field():
    assert read('""\na\n') == [[""], ["a"]]


@pytest.mark.parametrize("value", ['"', 'a"', '"a', 'a"b', "\n", 'x\n"', ","])
def test_what_is_written_is_read(value):
    assert read(write([[value, "end"]])) == [[value, "end"]]


def test_something_after_the_closing_mark_is_an_error():
    with pytest.raises(SheetError):
        read('"a"b,c')

import pytest

from roman import read, write
from roman.century import century, years


@pytest.mark.parametrize(("number", "numeral"), [(1, "I"), (7, "VII"), (30, "XXX"), (1666, "MDCLXVI"), (3000, "MMM")])
def test_there_and_back(number, numeral):
    assert write(number) == numeral
    assert read(numeral.lower()) == number


def test_limits():
    for number in (0, 4000, -1):
        with pytest.raises(ValueError):
            write(number)


def test_other_letters():
    with pytest.raises(ValueError):
        read("ABC")


def test_buildings():
    assert century(1701) == "XVIII"
    assert years("ERECTED MDCCL, REPAIRED MDCCCXX BY I. DOE") == [1750, 1820]

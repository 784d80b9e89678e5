import pytest

from roman import read, write
from roman.century import century, years


@pytest.mark.parametrize(
    ("number", "numeral"),
    [(4, "IV"), (9, "IX"), (40, "XL"), (90, "XC"), (400, "CD"), (900, "CM"), (1994, "MCMXCIV"), (3999, "MMMCMXCIX")],
)
def test_smaller_before_larger(number, numeral):
    assert write(number) == numeral
    assert read(numeral) == number


def test_all_of_them():
    assert [read(write(number)) for number in range(1, 4000)] == list(range(1, 4000))


@pytest.mark.parametrize("text", ["IIX", "VV", "IC", "", "IIII", "MMMM", "VX", "IVI", "XCX"])
def test_what_nobody_writes(text):
    with pytest.raises(ValueError):
        read(text)


def test_years_are_not_guessed():
    assert years("MCMXIV - MCMXVIII, IIX") == [1914, 1918]
    assert century(1900) == "XIX"

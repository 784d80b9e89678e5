import pytest

from units import UnitError, convert
from units.convert import show


@pytest.mark.parametrize(
    ("text", "target", "shown"),
    [
        ("100C", "F", "212F"),
        ("32F", "C", "0C"),
        ("0C", "K", "273.15K"),
        ("-40F", "C", "-40C"),
        ("0K", "F", "-459.67F"),
        ("98.6F", None, "37C"),
    ],
)
def test_temperatures(text, target, shown):
    assert show(text, target).replace(" ", "") == shown


def test_a_temperature_is_no_length():
    for text in ("20 C", "20 F", "20 K"):
        with pytest.raises(UnitError):
            convert(text, "m")


def test_lengths_still():
    assert convert("12 in", "ft") == pytest.approx(1)

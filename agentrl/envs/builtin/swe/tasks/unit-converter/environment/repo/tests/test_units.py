import pytest

from units import UnitError, convert
from units.convert import show


def test_lengths():
    assert convert("3 km", "m") == 3000
    assert show("1 mi", "km") == "1.6093 km"


def test_weights():
    assert show("10 lb") == "4.5359 kg"


@pytest.mark.parametrize(("text", "target"), [("3m", "g"), ("3furlongs", "m"), ("m", "m"), ("1m", "x")])
def test_refusals(text, target):
    with pytest.raises(UnitError):
        convert(text, target)

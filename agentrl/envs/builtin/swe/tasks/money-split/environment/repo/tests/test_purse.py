import pytest

from purse import Money, split
from purse.split import share


def test_text():
    assert str(Money.parse("-3.05 EUR")) == "-3.05 EUR"
    assert Money.parse("7 USD") == Money(700, "USD")


def test_even_splits():
    assert split(Money(1000), [1, 1]) == [Money(500), Money(500)]
    assert share(Money(900), "abc") == {"a": Money(300), "b": Money(300), "c": Money(300)}


def test_by_weight():
    assert split(Money(1000), [3, 1, 0]) == [Money(750), Money(250), Money(0)]


@pytest.mark.parametrize("weights", [[], [0, 0], [2, -1]])
def test_wrong_weights(weights):
    with pytest.raises(ValueError):
        split(Money(100), weights)

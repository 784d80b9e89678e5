import pytest

from purse import Money, split


def cents(amount, weights):
    return [part.cents for part in split(Money(amount), weights)]


def test_the_first_gets_the_cent():
    assert cents(1000, [1, 1, 1]) == [334, 333, 333]


def test_the_largest_fraction_gets_the_cent():
    assert cents(100, [1, 2]) == [33, 67]
    assert cents(101, [2, 3, 2]) == [29, 43, 29]


def test_refunds_mirror_invoices():
    assert cents(-1000, [1, 1, 1]) == [-334, -333, -333]
    assert cents(-100, [1, 2]) == [-33, -67]


def test_a_weight_of_zero_gets_nothing():
    assert cents(1, [0, 1, 0]) == [0, 1, 0]
    assert cents(5, [0, 3, 4]) == [0, 2, 3]


@pytest.mark.parametrize("weights", [[1, 1, 1], [7, 11, 13], [1, 99], [5] * 7])
def test_parts_add_up(weights):
    for amount in (0, 1, 99, 12345, -1, -777):
        assert sum(cents(amount, weights)) == amount


def test_the_currency_stays():
    assert split(Money(3, "USD"), [1, 1])[0] == Money(2, "USD")

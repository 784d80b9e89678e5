from datetime import datetime

import pytest

from tick import Schedule

NOON = datetime(2024, 2, 28, 12, 0)


def test_every_day():
    assert Schedule("30 9 * * *").next(NOON) == datetime(2024, 2, 29, 9, 30)


def test_steps():
    assert [m.minute for m in Schedule("*/20 * * * *").upcoming(NOON, 3)] == [20, 40, 0]


def test_weekdays():
    assert Schedule("0 0 * * 1-5").next(datetime(2024, 3, 1, 8)) == datetime(2024, 3, 4)


def test_months():
    assert Schedule("@monthly").next(datetime(2024, 12, 1)) == datetime(2025, 1, 1)


@pytest.mark.parametrize("text", ["*_*_*_*", "60_*_*_*_*", "x_*_*_*_*", "5-1_*_*_*_*", "*/0_*_*_*_*"])
def test_refusals(text):
    with pytest.raises(ValueError):
        Schedule(text.replace("_", " "))

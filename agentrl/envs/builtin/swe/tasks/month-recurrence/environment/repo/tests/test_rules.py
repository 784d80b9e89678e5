from datetime import date

import pytest

from calendar_rules import Rule


def test_weeks():
    rule = Rule(date(2024, 2, 26), "week", every=2)
    assert rule.first(3) == [date(2024, 2, 26), date(2024, 3, 11), date(2024, 3, 25)]


def test_months():
    rule = Rule(date(2023, 11, 15), "month", until=date(2024, 1, 31))
    assert list(rule) == [date(2023, 11, 15), date(2023, 12, 15), date(2024, 1, 15)]


def test_a_short_month():
    assert Rule(date(2024, 1, 31), "month").first(2)[1] == date(2024, 2, 29)


def test_skipping():
    rule = Rule(date(2024, 1, 1), "day", skip=[date(2024, 1, 2)])
    assert rule.next(date(2024, 1, 1)) == date(2024, 1, 3)


def test_wrong_steps():
    with pytest.raises(ValueError):
        Rule(date(2024, 1, 1), "hour")

from datetime import date

from calendar_rules import Rule


def test_the_end_of_each_month():
    days = [day.day for day in Rule(date(2023, 1, 31), "month").first(6)]
    assert days == [31, 28, 31, 30, 31, 30]


def test_the_thirtieth_survives_february():
    assert Rule(date(2024, 1, 30), "month").first(3)[2] == date(2024, 3, 30)


def test_leap_days_come_back():
    years = Rule(date(2020, 2, 29), "year").first(5)
    assert [day.day for day in years] == [29, 28, 28, 28, 29]


def test_every_second_month():
    assert Rule(date(2023, 12, 31), "month", every=2).first(3) == [date(2023, 12, 31), date(2024, 2, 29), date(2024, 4, 30)]


def test_both_ends_are_included():
    rule = Rule(date(2024, 1, 1), "week")
    assert rule.between(date(2024, 1, 8), date(2024, 1, 15)) == [date(2024, 1, 8), date(2024, 1, 15)]


def test_what_is_skipped_still_counts():
    rule = Rule(date(2024, 1, 31), "month", skip=[date(2024, 2, 29)])
    assert rule.first(2) == [date(2024, 1, 31), date(2024, 3, 31)]
    assert rule.next(date(2024, 2, 28)) == date(2024, 3, 31)

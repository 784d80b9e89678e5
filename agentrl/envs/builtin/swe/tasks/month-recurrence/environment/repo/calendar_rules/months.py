"""Arithmetic with months."""

import calendar
from datetime import date


def days_in(year, month):
    return calendar.monthrange(year, month)[1]


def add_months(day, count):
    """The same day some months later; the last day of the month where there is none such."""
    year, month = divmod(day.year * 12 + day.month - 1 + count, 12)
    return date(year, month + 1, min(day.day, days_in(year, month + 1)))

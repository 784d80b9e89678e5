"""Counting days on which somebody works."""

from datetime import date, timedelta

from office.holidays import Holidays

DAY = timedelta(days=1)
WEEKEND = (5, 6)


class Office:
    def __init__(self, holidays=None):
        self.holidays = holidays or Holidays()

    def open(self, day):
        """Whether somebody works that day."""
        return day.weekday() not in WEEKEND and self.holidays.name(day) is None

    def next_open(self, day):
        """The day itself, or the first working day after it."""
        while not self.open(day):
            day += DAY
        return day

    def add(self, day, count):
        """The day so many working days later (or earlier, where negative)."""
        if count <= 0:
            return day + count * DAY
        weeks, rest = divmod(count, 5)
        end = day + timedelta(weeks=weeks)
        for _ in range(rest):
            end = self.next_open(end + DAY)
        extra = self.holidays.count(day + DAY, end) if weeks else 0
        for _ in range(extra):
            end = self.next_open(end + DAY)
        return self.next_open(end)

    def between(self, low, high):
        """How many working days there are from `low` (included) to `high` (not included)."""
        days = (date.fromordinal(number) for number in range(low.toordinal(), high.toordinal()))
        return sum(self.open(day) for day in days)

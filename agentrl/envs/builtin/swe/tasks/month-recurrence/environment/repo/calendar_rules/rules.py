"""Rules for dates that come back every so many days, weeks, months or years."""

from datetime import date, timedelta
from itertools import islice

from calendar_rules.months import add_months

STEPS = ("day", "week", "month", "year")


class Rule:
    """A start and a step.

    Args:
        start: the first date.
        step: "day", "week", "month" or "year".
        every: how many steps lie between two dates.
        until: the last date that is possible, or None.
        skip: dates that are left out.
    """

    def __init__(self, start, step, every=1, until=None, skip=()):
        if step not in STEPS:
            raise ValueError(f"{step!r}: allowed are {', '.join(STEPS)}")
        if every < 1:
            raise ValueError(f"every {every}: at least 1")
        self.start, self.step, self.every, self.until = start, step, every, until
        self.skip = set(skip)

    def _after(self, day):
        """The date that follows one of the rule's dates."""
        if self.step == "day":
            return day + timedelta(days=self.every)
        if self.step == "week":
            return day + timedelta(weeks=self.every)
        return add_months(day, self.every * (12 if self.step == "year" else 1))

    def __iter__(self):
        day = self.start
        while self.until is None or day <= self.until:
            if day not in self.skip:
                yield day
            day = self._after(day)

    def first(self, count):
        return list(islice(self, count))

    def between(self, low, high):
        """The dates from `low` to `high`, both included."""
        found = []
        for day in self:
            if day >= high:
                break
            if day >= low:
                found.append(day)
        return found

    def next(self, today: date):
        """The first date after today, or None."""
        return next((day for day in self if day > today), None)

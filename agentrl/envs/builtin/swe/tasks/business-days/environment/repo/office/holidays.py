"""Public holidays: fixed dates by month and day, and single dates."""

from datetime import date


class Holidays:
    """Reads lines such as "12-25 Christmas" (every year) and "2024-04-01 Easter Monday"."""

    def __init__(self, text=""):
        self._yearly = {}
        self._single = {}
        for line in text.splitlines():
            when, _, name = line.strip().partition(" ")
            if not when:
                continue
            numbers = tuple(int(number) for number in when.split("-"))
            if len(numbers) == 2:
                self._yearly[numbers] = name
            else:
                self._single[date(*numbers)] = name

    def name(self, day):
        """The name of a holiday, or None."""
        return self._single.get(day) or self._yearly.get((day.month, day.day))

    def count(self, low, high):
        """How many holidays there are from `low` to `high`, both included."""
        days = (date.fromordinal(number) for number in range(low.toordinal(), high.toordinal() + 1))
        return sum(self.name(day) is not None for day in days)

"""Sets of numbers as sorted intervals that never touch."""

from bisect import bisect_left

from span.interval import Interval


class IntervalSet:
    def __init__(self, intervals=()):
        self._items = []
        for start, end in intervals:
            self.add(start, end)

    def add(self, start, end):
        """Put in everything from `start` to `end`."""
        new = self._checked(start, end)
        if new is None:
            return
        index = bisect_left(self._items, new)
        if index and self._items[index - 1].touches(new):
            index -= 1
        if index < len(self._items) and self._items[index].touches(new):
            self._items[index] = self._items[index].hull(new)
        else:
            self._items.insert(index, new)

    def remove(self, start, end):
        """Take out everything from `start` to `end`."""
        gone = self._checked(start, end)
        if gone is None:
            return
        left = []
        for item in self._items:
            left.extend(item.minus(gone) if item.touches(gone) else [item])
        self._items = left

    def _checked(self, start, end):
        if start > end:
            raise ValueError(f"an interval from {start} to {end}: its start must not come after its end")
        return Interval(start, end) if start < end else None

    def __contains__(self, number):
        index = bisect_left(self._items, Interval(number, number))
        if index < len(self._items) and self._items[index].start == number:
            return True
        return index > 0 and self._items[index - 1].end > number

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)

    def gaps(self, start, end):
        """What is not in the set between two numbers."""
        free = IntervalSet([(start, end)])
        for item in self._items:
            free.remove(*item)
        return free

    @property
    def length(self):
        return sum(item.length for item in self._items)

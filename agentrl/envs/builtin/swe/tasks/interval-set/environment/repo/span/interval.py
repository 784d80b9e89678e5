"""A stretch from a start (included) to an end (not included)."""

from typing import NamedTuple


class Interval(NamedTuple):
    start: float
    end: float

    @property
    def length(self):
        return self.end - self.start

    def touches(self, other):
        """Whether the two overlap or lie side by side."""
        return self.start <= other.end and other.start <= self.end

    def hull(self, other):
        """The shortest interval that covers both."""
        return Interval(min(self.start, other.start), max(self.end, other.end))

    def minus(self, other):
        """What is left of this one outside of the other: none, one or two intervals."""
        if other.start > self.start:
            return [Interval(self.start, min(self.end, other.start))]
        return [Interval(max(self.start, other.end), self.end)]

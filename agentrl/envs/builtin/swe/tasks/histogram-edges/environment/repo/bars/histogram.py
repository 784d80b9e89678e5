"""Counting values in bins of equal width. A bin includes its lower edge; the last one includes both of its edges."""

from bisect import bisect_right


class Histogram:
    """Counts.

    Args:
        low, high: the outer edges.
        bins: how many there are.
    """

    def __init__(self, low, high, bins):
        if bins < 1 or low > high:
            raise ValueError(f"{bins} bins from {low} to {high}")
        self.low, self.high = low, high
        self.width = (high - low) / bins
        self.counts = [0] * bins
        self.outside = 0

    @classmethod
    def of(cls, values, bins=10):
        """A histogram that spans its values."""
        values = list(values)
        histogram = cls(min(values), max(values), bins)
        for value in values:
            histogram.add(value)
        return histogram

    @property
    def edges(self):
        """The lower edges of all bins, and the upper edge of the last."""
        count = len(self.counts)
        return [(self.low * (count - i) + self.high * i) / count for i in range(count + 1)]

    def bin(self, value):
        """The number of the bin that a value belongs to, or None."""
        if not self.low <= value <= self.high:
            return None
        index = int((value - self.low) / self.width)
        return index if index < len(self.counts) else None

    def add(self, value, times=1):
        index = self.bin(value)
        if index is None:
            self.outside += times
        else:
            self.counts[index] += times

    @property
    def total(self):
        return sum(self.counts)

    def quantile(self, share):
        """The lower edge of the first bin up to which at least a share of the values lies."""
        goal, seen = share * self.total, 0
        for edge, count in zip(self.edges, self.counts):
            seen += count
            if seen >= goal and seen:
                return edge
        return self.high


def merge(one, other):
    """The sum of two histograms with the same edges."""
    if one.edges != other.edges:
        raise ValueError("the edges differ")
    result = Histogram(one.low, one.high, len(one.counts))
    result.counts = [a + b for a, b in zip(one.counts, other.counts)]
    result.outside = one.outside + other.outside
    return result

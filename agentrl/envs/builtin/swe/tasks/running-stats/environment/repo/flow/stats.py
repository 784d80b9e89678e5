"""Count, mean, variance and extremes in constant memory."""

import math


class Stats:
    def __init__(self, samples=()):
        self.count = 0
        self._sum = 0.0
        self._squares = 0.0
        self.low = math.inf
        self.high = -math.inf
        for sample in samples:
            self.add(sample)

    def add(self, sample):
        self.count += 1
        self._sum += sample
        self._squares += sample * sample
        self.low = min(self.low, sample)
        self.high = max(self.high, sample)

    @property
    def mean(self):
        return self._sum / self.count if self.count else math.nan

    @property
    def variance(self):
        """The variance of a sample (with n - 1); nan for fewer than two."""
        if self.count < 2:
            return math.nan
        return (self._squares - self._sum * self._sum / self.count) / (self.count - 1)

    def merge(self, other):
        """The statistics of both streams."""
        merged = Stats()
        merged.count = self.count + other.count
        merged._sum = (self.mean + other.mean) / 2 * merged.count
        merged._squares = self._squares + other._squares
        merged.low = min(self.low, other.low)
        merged.high = max(self.high, other.high)
        return merged

    @property
    def deviation(self):
        return math.sqrt(self.variance)

    def __repr__(self):
        return f"Stats(count={self.count}, mean={self.mean:g}, variance={self.variance:g})"

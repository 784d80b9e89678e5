"""A bucket that tokens drip into at a steady rate; whoever takes one may go on. Times are in milliseconds."""


class Bucket:
    """Tokens.

    Args:
        rate: how many tokens come in a second.
        capacity: how many the bucket holds; it starts full.
        now: the time, a whole number of milliseconds.
    """

    def __init__(self, rate, capacity, now=0):
        if rate <= 0 or capacity < 1:
            raise ValueError(f"rate={rate}, capacity={capacity}: both must be positive")
        self.rate = rate
        self.capacity = capacity
        self._tokens = capacity
        self._time = now

    def _refill(self, now):
        if now <= self._time:
            return
        new = (now - self._time) * self.rate // 1000
        self._tokens = min(self.capacity, self._tokens + new)
        self._time = now

    def take(self, now, count=1):
        """Take tokens; False, and none taken, where there are too few."""
        self._refill(now)
        if self._tokens < count:
            return False
        self._tokens -= count
        return True

    def wait_time(self, now, count=1):
        """Milliseconds until so many tokens are there."""
        self._refill(now)
        missing = count - self._tokens
        return max(0, int(missing * 1000 / self.rate) - 1)

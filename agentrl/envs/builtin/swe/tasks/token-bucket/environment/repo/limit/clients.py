"""A bucket for each client; those that were idle long enough to be full again are forgotten."""

from limit.bucket import Bucket


class Clients:
    def __init__(self, rate, capacity):
        self.rate = rate
        self.capacity = capacity
        self._buckets = {}

    def allow(self, client, now):
        if client not in self._buckets:
            self._buckets[client] = Bucket(self.rate, self.capacity, now)
        return self._buckets[client].take(now)

    def forget(self, now):
        """Drop the buckets that are full; how many there were."""
        full = [name for name, bucket in self._buckets.items() if bucket.wait_time(now, self.capacity) == 0]
        for name in full:
            del self._buckets[name]
        return len(full)

    def __len__(self):
        return len(self._buckets)

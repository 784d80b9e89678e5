"""The cache: a dictionary whose order is that of use, oldest first."""

from stash.stats import Stats

MISSING = object()


class Cache:
    """At most `size` entries; the one not used for longest has to go.

    Args:
        size: how many entries there is room for.
        on_evict: called with the key and the value of every entry that has to go.
    """

    def __init__(self, size, on_evict=None):
        if size < 1:
            raise ValueError(f"size is {size}: it must be at least 1")
        self.size = size
        self.stats = Stats()
        self._on_evict = on_evict
        self._entries = {}

    def get(self, key, default=None):
        """The value of a key; this counts as use."""
        value = self._entries.pop(key, MISSING)
        if value is MISSING:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries[key] = value
        return value

    def put(self, key, value):
        """Set the value of a key; this counts as use."""
        self._entries[key] = value
        if len(self._entries) > self.size:
            self._evict()

    def resize(self, size):
        """Change the room there is."""
        if size < 1:
            raise ValueError(f"size is {size}: it must be at least 1")
        self.size = size
        while len(self._entries) > size:
            key, value = self._entries.popitem()
            self.stats.evictions += 1
            if self._on_evict:
                self._on_evict(key, value)

    def _evict(self):
        key = next(iter(self._entries))
        value = self._entries.pop(key)
        self.stats.evictions += 1
        if self._on_evict:
            self._on_evict(key, value)

    def __contains__(self, key):
        return key in self._entries

    def __len__(self):
        return len(self._entries)

    def keys(self):
        """The keys, least recently used first."""
        return list(self._entries)

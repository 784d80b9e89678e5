"""How well a cache does."""

from dataclasses import dataclass


@dataclass
class Stats:
    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def rate(self):
        """The share of look-ups that found something."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0

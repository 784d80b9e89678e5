"""Counts lines, words, characters and bytes."""

from count.counting import Counts, count

__all__ = ["Counts", "count"]

"""Command lines, split into words and put together again."""

from words.join import join
from words.split import split

__all__ = ["join", "split"]

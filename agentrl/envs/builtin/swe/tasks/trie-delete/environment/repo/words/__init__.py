"""A dictionary that completes words."""

from words.complete import complete
from words.trie import Trie

__all__ = ["Trie", "complete"]

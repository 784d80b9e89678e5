"""Loading things once."""

from once.cache import OnceCache
from once.flight import Flight

__all__ = ["Flight", "OnceCache"]

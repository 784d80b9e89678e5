"""A cache that forgets what was not used for longest."""

from stash.cache import Cache

__all__ = ["Cache"]

"""Addresses of articles."""

from press.slug import slug
from press.unique import Slugs

__all__ = ["Slugs", "slug"]

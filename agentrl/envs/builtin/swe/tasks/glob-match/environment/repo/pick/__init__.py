"""Selecting paths by patterns."""

from pick.select import select
from pick.translate import translate

__all__ = ["select", "translate"]

"""Statistics of streams too long to keep."""

from flow.stats import Stats
from flow.windows import by_window

__all__ = ["Stats", "by_window"]

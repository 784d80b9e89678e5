"""In which order packages are built."""

from build.order import Cycle, order

__all__ = ["Cycle", "order"]

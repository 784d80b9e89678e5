"""The last readings of a sensor."""

from ring.buffer import Ring
from ring.smooth import mean, trend

__all__ = ["Ring", "mean", "trend"]

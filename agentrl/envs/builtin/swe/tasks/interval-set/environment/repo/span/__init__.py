"""Intervals and sets of them."""

from span.interval import Interval
from span.intervalset import IntervalSet

__all__ = ["Interval", "IntervalSet"]

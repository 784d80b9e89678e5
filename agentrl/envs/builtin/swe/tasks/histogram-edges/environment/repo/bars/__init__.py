"""Histograms."""

from bars.draw import draw
from bars.histogram import Histogram

__all__ = ["Histogram", "draw"]

"""Settings in layers."""

from layers.merge import merge
from layers.stack import Stack

__all__ = ["Stack", "merge"]

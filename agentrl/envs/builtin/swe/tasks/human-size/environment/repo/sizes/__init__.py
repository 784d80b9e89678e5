"""Sizes of files for people."""

from sizes.human import human, parse

__all__ = ["human", "parse"]

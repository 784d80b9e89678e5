"""Roman numerals from 1 to 3999."""

from roman.numerals import read, write

__all__ = ["read", "write"]

"""Converts between units of a kind."""

from units.convert import UnitError, convert

__all__ = ["UnitError", "convert"]

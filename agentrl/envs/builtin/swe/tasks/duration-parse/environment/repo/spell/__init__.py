"""Spelling out numbers."""

from spell.duration import format_duration, parse

__all__ = ["format_duration", "parse"]

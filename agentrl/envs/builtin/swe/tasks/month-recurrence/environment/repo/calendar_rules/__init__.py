"""Dates that come back."""

from calendar_rules.rules import Rule

__all__ = ["Rule"]

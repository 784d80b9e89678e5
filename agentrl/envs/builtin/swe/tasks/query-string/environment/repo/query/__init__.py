"""Query strings of web addresses."""

from query.fields import Fields, parse

__all__ = ["Fields", "parse"]

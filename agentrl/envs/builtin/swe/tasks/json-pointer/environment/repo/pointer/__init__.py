"""JSON pointers: addresses inside documents of lists and dictionaries."""

from pointer.assign import assign
from pointer.resolve import PointerError, resolve
from pointer.tokens import build, parse

__all__ = ["PointerError", "assign", "build", "parse", "resolve"]

"""Comma-separated records, as RFC 4180 describes them."""

from sheet.machine import SheetError, read
from sheet.writer import write

__all__ = ["SheetError", "read", "write"]

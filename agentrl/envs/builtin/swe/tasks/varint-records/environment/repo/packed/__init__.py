"""A compact binary format for records of integers and texts."""

from packed.records import read, write
from packed.varint import Truncated

__all__ = ["Truncated", "read", "write"]

"""A text that remembers how it came about."""

from scribe.document import Document
from scribe.edit import Edit

__all__ = ["Document", "Edit"]

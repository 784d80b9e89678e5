"""Telling others that something happened."""

from bus.bus import Bus
from bus.once import once

__all__ = ["Bus", "once"]

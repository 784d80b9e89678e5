"""A point in time at which work must have ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

HEALTH_SECONDS = 60.0
"""Seconds that a server or worker may take to answer as long as nobody who asks for its health has less patience."""


@dataclass(frozen=True)
class Deadline:
    """The end of work: so many seconds after its beginning, `at` in `time.monotonic()`."""

    seconds: float
    at: float

    def left(self) -> float:
        """Return the seconds until then, negative afterwards."""
        return self.at - time.monotonic()

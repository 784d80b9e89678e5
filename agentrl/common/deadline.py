"""A point in time at which work must have ended."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """The end of work: so many seconds after its beginning, `at` in `time.monotonic()`."""

    seconds: float
    at: float

    def left(self) -> float:
        """Return the seconds until then, negative afterwards."""
        return self.at - time.monotonic()

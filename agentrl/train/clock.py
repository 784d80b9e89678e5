"""How long a step's phases take, for metrics and, where the run is traced, as spans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl import tracing


class Clock:
    """Seconds by phase, since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        began = time.monotonic()
        try:
            with tracing.span(phase):
                yield
        finally:
            self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - began

    def metrics(self) -> dict[str, float]:
        """time/<phase> for each, time/step for the whole, and time/ended: now, in seconds since 1970."""
        phases = {f"time/{name}": seconds for name, seconds in self._phases.items()}
        return {**phases, "time/step": time.monotonic() - self._began, "time/ended": time.time()}

"""The time of a step's phases, for metrics and, where the run is traced, as spans."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agentrl import tracing


class Clock:
    """Seconds by phase, since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            with tracing.span(phase):
                yield
        finally:
            self.add({phase: time.monotonic() - began})

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase so far."""
        return dict(self._phases)

    def add(self, phases: Mapping[str, float]) -> None:
        """Add seconds that another process took."""
        for phase, seconds in phases.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """time/<phase> for each, time/step for the whole, and time/ended: now, in seconds since 1970."""
        phases = {f"time/{name}": seconds for name, seconds in self._phases.items()}
        return {**phases, "time/step": time.monotonic() - self._began, "time/ended": time.time()}

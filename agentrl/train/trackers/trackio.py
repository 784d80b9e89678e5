"""Trackio as a back end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from agentrl.train.trackers.base import TrackedRun, Tracker


class Trackio(Tracker):
    """`metrics=[trackio]`: Trackio's own folder on this machine (TRACKIO_DIR), which `trackio show` serves.

    Trackio knows a run by its name alone, so a run's has an ending of its own.
    """

    package = extra = "trackio"

    def __init__(self, about: TrackedRun) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=about.project,
            name=about.remembered("trackio-name", f"{about.name}-{uuid4().hex[:6]}"),
            config=dict(about.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def last(self) -> int | None:
        following: int | None = getattr(self._run, "_next_step", None)
        return following if following is None else following - 1

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step)

    def close(self) -> None:
        self._run.finish()

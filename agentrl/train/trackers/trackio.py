"""Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.train.trackers.base import About, Tracker


class Trackio(Tracker):
    """`metrics=[trackio]`: Trackio's own folder on this machine (TRACKIO_DIR), which `trackio show` serves."""

    package = extra = "trackio"

    def __init__(self, about: About) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=about.project,
            name=about.name,
            config=dict(about.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers; a step that is trained again after a resumption is there twice."""
        self._run.log(dict(numbers), step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()

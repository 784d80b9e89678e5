"""TensorBoard's event files, in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.train.trackers.base import TrackedRun, Tracker


class TensorBoard(Tracker):
    """`metrics=[tensorboard]`, the default: RUN/tensorboard/, whose event files can't be cut but only rewritten."""

    package, extra, rewritten = "tensorboard", "train", True

    def __init__(self, about: TrackedRun) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(about.folder / "tensorboard"))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()

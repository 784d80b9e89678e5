"""Back ends for metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from agentrl.train.record.files import write_atomically


@dataclass(frozen=True)
class TrackedRun:
    """A run's description for a back end.

    Attributes:
        project: groups runs: a project, or an experiment.
        settings: the run's, by dotted names, without secrets.
        address: host:port, where a back end answers requests.
    """

    folder: Path
    project: str = "agentrl"
    settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = "127.0.0.1:0"

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def own(self) -> Path:
        """The folder for back ends' own files, in the run's folder."""
        return self.folder / "trackers"

    def remembered(self, name: str, made: str) -> str:
        """A text that stays the same when the run is resumed, such as an id: `made`, the first time."""
        file = self.own / name
        if not file.exists():
            self.keep(name, made)
        return file.read_text()

    def keep(self, name: str, text: str) -> None:
        """Keep a text for the run's resumption, in place of what was kept under that name."""
        self.own.mkdir(exist_ok=True)
        write_atomically(self.own / name, text.encode())

    def kept(self, name: str) -> str:
        """Return what was kept under that name; nothing where nothing was."""
        file = self.own / name
        return file.read_text() if file.exists() else ""


class Tracker(ABC):
    """A back end; made, called and closed in a thread of its own, it may block and raise as it likes.

    Attributes:
        package: the module that it needs.
        extra: the extra of agentrl that brings it.
        rewritten: whether it begins from nothing when a run is resumed, and gets all steps again. Otherwise it gets
            each step once.
    """

    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    rewritten: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, about: TrackedRun) -> None:
        """Open it, for a run that begins or goes on."""

    def last(self) -> int | None:
        """The last step that it has kept for good, which is asked once, after opening; later steps are passed on.

        None where it can't tell: then it counts as kept what `log` returned from, in this process or an earlier one.
        """
        return None

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write a step's metrics, of an ever later step. What fails is tried again with the next step."""

    @abstractmethod
    def close(self) -> None:
        """Write the remaining metrics, and close."""

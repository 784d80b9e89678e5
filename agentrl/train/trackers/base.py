"""What a metrics back end is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class About:
    """What a back end is told of a run.

    Attributes:
        folder: the run's.
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
        """The run's name."""
        return self.folder.resolve().name

    @property
    def own(self) -> Path:
        """Where back ends keep files of their own, in the run's folder."""
        return self.folder / "trackers"

    def remembered(self, name: str, made: str) -> str:
        """A text that stays the same when the run is resumed, such as an id: `made`, the first time."""
        file = self.own / name
        if not file.exists():
            self.own.mkdir(exist_ok=True)
            file.write_text(made)
        return file.read_text()


class Tracker(ABC):
    """A back end; made, called and closed in a thread of its own, it may block and raise as it likes.

    Attributes:
        package: the module that it needs.
        extra: the extra of agentrl that brings it.
        rewritten: whether a resumed run removes what it wrote and hands it all rows again. Otherwise it gets the rows
            after the step that the run continues after, some of which it may have had before.
    """

    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    rewritten: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, about: About) -> None:
        """Open it, for a run that begins or goes on."""

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write a step's metrics."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""

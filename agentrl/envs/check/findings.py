"""The results of a check: violations, notes, costs and scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A remark that an author should know and may well want; the check passes all the same."""

    message: str
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(frozen=True)
class Finding:
    """A violation: the rule's name, what was found, and how to fix it."""

    rule: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}; {self.fix}" if self.fix else f"{self.rule}: {self.message}"


@dataclass(frozen=True)
class Measured:
    """An environment's measured costs.

    Attributes:
        turn_ms: milliseconds of the median `step`, tools included.
        instance_bytes: Python memory of an instance whose episode has begun.
    """

    turn_ms: float
    instance_bytes: int

    def __str__(self) -> str:
        return f"a turn takes {self.turn_ms:.2f} ms, an instance {self.instance_bytes / 1024:,.1f} KB"


@dataclass(frozen=True)
class Scores:
    """The table of scores.

    Attributes:
        rows: agent, mean score, and half of its 95 % interval.
        tasks: how many tasks each agent played.
        wanted: how many it would have played with more time.
        seconds: how long that took.
    """

    rows: tuple[tuple[str, float, float], ...]
    tasks: int
    wanted: int
    seconds: float

    def __str__(self) -> str:
        lines = [f"{agent:<22} {mean:6.2f} ± {margin:.2f}" for agent, mean, margin in self.rows]
        late = f" of {self.wanted}; seconds=N gives more time" if self.tasks < self.wanted else ""
        return "\n".join([f"mean scores in {self.tasks}{late} tasks ({self.seconds:.1f} s)", *lines])

"""What a rule is: what it proves, how to fix a violation, and the function that checks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.envs.check.subject import Subject


@dataclass(frozen=True)
class Note:
    """What an author should know and may well want; the check passes all the same."""

    message: str
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


Check = Callable[["Subject"], AsyncIterator[str] | AsyncIterator[str | Note]]
"""Yields a message for each violation: which one, where, and the values that show it; or a note."""


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
    """What an environment costs.

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


@dataclass(frozen=True)
class Rule:
    """One rule of an environment's contract.

    Attributes:
        name: the rule's name in findings.
        proves: what it proves, as a sentence.
        fix: how an author fixes a violation.
        check: yields a message for each violation.
        alone: whether it is checked only where nothing else was found, because it starts processes.
    """

    name: str
    proves: str
    fix: str
    check: Check
    alone: bool = False

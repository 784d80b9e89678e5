"""A verification's result: for each check what it examined, where the record breaks, and what it can't tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHOWN = 5
"""Faults of a check that are shown."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A place where the record contradicts itself: `where` in the run, and `what` is wrong there."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(slots=True)
class Check:
    """A check and its result.

    Attributes:
        name: a word.
        about: what has to hold.
        faults: where it does not.
        examined: how much was looked at, by kind.
        unknown: what the record can't tell, by reason; no fault.
        told: what else a reader has to know, in words; no fault.
    """

    name: str
    about: str
    faults: list[Discrepancy] = field(default_factory=list)
    examined: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def fault(self, where: str, what: str) -> None:
        """Add a place where it does not hold."""
        self.faults.append(Discrepancy(where, what))

    @property
    def result(self) -> str:
        """The result in a few words."""
        if self.faults:
            return f"{len(self.faults)} fault{'s' * (len(self.faults) > 1)}"
        return "UNKNOWN in part" if self.unknown else "holds"

    def json(self) -> dict[str, Any]:
        """Return the check as JSON."""
        return {
            "name": self.name,
            "about": self.about,
            "examined": dict(self.examined),
            "unknown": dict(self.unknown),
            "told": self.told,
            "faults": [{"where": fault.where, "what": fault.what} for fault in self.faults],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a run."""

    run: Path
    steps: int
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """True where nothing contradicts the record."""
        return not any(check.faults for check in self.checks)

    @property
    def verdict(self) -> str:
        """PASS or FAIL."""
        return "PASS" if self.passed else "FAIL"

    def json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        checks = [check.json() for check in self.checks]
        return {"run": str(self.run), "steps": self.steps, "verdict": self.verdict, "checks": checks}

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """The table: name, what has to hold, what was examined, result."""
        for check in self.checks:
            examined = ", ".join(f"{count:,} {kind}" for kind, count in check.examined.items())
            yield check.name, check.about, examined, check.result

    def lines(self) -> Iterator[str]:
        """Yield what follows the table: the first faults of each check, what is unknown, the verdict."""
        for check in self.checks:
            yield from (f"{check.name}: {fault}" for fault in check.faults[:SHOWN])
            if len(check.faults) > SHOWN:
                yield f"{check.name}: … and {len(check.faults) - SHOWN} more"
            yield from check.told
            yield from (f"{check.name}: UNKNOWN for {count:,} {why}" for why, count in check.unknown.items())
        yield f"{self.verdict}: {self.run}, {self.steps} steps"

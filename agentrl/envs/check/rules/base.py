"""Rules: the promise that each proves, how to fix a violation, and the function that checks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from agentrl.envs.check.findings import Note
from agentrl.envs.check.subject import Subject

Check = Callable[[Subject], AsyncIterator[str] | AsyncIterator[str | Note]]
"""Yields a message for each violation: which one, where, and the values that show it; or a note."""


@dataclass(frozen=True)
class Rule:
    """One rule of an environment's contract; what it proves is the first line of its check's docstring.

    Attributes:
        name: the rule's name in findings.
        check: yields a message for each violation.
        fix: how an author fixes a violation.
        alone: whether it is checked only where nothing else was found, because it starts processes.
    """

    name: str
    check: Check
    fix: str
    alone: bool = False

    @property
    def proves(self) -> str:
        """Return the promise, as a clause."""
        sentence = (self.check.__doc__ or self.name).partition("\n")[0].removesuffix(".")
        return sentence[0].lower() + sentence[1:]

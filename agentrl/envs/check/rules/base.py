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

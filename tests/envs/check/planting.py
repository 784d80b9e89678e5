"""All planted faults, and environments without any: checked, and whether the right reason is found.

Faults that break the contract plainly are classes (`broken_envs`, `faulty_envs`); those of ordinary authors, who meant
well, are in `faults.yaml`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from agentrl.envs.base import Env
from agentrl.envs.check import Finding, Note, check_env, resources
from tests.envs.check import faulty_envs, worlds
from tests.envs.check.broken_envs import Basket, Till
from tests.envs.check.honest_envs import HONEST

FAULTS = Path(__file__).with_name("faults.yaml")
HEAD = "from tests.envs.check.worlds import *\n"
SMALL = {"tasks": 2, "scored": 24, "seconds": 60.0, "hostile": 1}
"""Settings with which a fault is still found."""


FEW = {"tasks": 1, "scored": 2, "seconds": 60.0, "hostile": 1}
"""Settings with which a fault is found that every episode shows."""
SCORED = {"scores": 6, "prompts": 24, "expert": 24, "chance": 24, "hidden": 24}
"""Tasks that must be played where a rule compares many."""
TWO_TASKS = ("determinism", "state")
THREE_TASKS = ("expert", "ranges", "isolation")
"""Rules that need more than one task of each split to see a fault that is a class."""


@dataclass(frozen=True)
class Fault:
    """A fault: the class that has it (or its code), the rule that finds it, and what the finding must hold."""

    name: str
    rule: str
    words: str
    code: str = ""
    env: type[Env] | None = None

    def is_named_by(self, event: object) -> bool:
        """Whether a finding is of this fault, for the right reason."""
        return isinstance(event, Finding) and event.rule == self.rule and self.words in event.message


@dataclass
class Outcome:
    """What a check said."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def names(self, fault: Fault) -> bool:
        """Whether the fault was found for the right reason."""
        return any(map(fault.is_named_by, self.findings))


class Found(Exception):
    """Ends a check: the fault was found."""


def faults() -> list[Fault]:
    """Those of ordinary authors."""
    return [Fault(**each) for each in yaml.safe_load(FAULTS.read_text(encoding="utf-8"))]


def plain_faults() -> list[Fault]:
    """Those that are classes."""
    return [Fault(f"{env.__name__}: {words}", rule, words, env=env) for env, rule, words in faulty_envs.FAULTS]


def check(env: str | Callable[..., Env], *, until: Fault | None = None, **settings: Any) -> Outcome:
    """Check an environment, to the end or until a fault is found."""
    outcome = Outcome()

    def report(event: Any) -> None:
        if isinstance(event, Note):
            outcome.notes.append(event)
        if isinstance(event, Finding):
            outcome.findings.append(event)
        if until is not None and until.is_named_by(event):
            raise Found

    with suppress(Found):
        check_env(env, report=report, **{**SMALL, **settings})
    return outcome


def find(fault: Fault, folder: Path) -> Outcome:
    """Check for a fault with as few episodes as find it; the check ends there."""
    settings = FEW | {"scored": SCORED.get(fault.rule, 2)}
    if fault.env is None:
        return check_fault(fault, folder, until=fault, **settings | {"tasks": 1 + (fault.rule in TWO_TASKS)})
    return check(fault.env, until=fault, **settings | {"tasks": 3 if fault.rule in THREE_TASKS else 1})


def check_fault(fault: Fault, folder: Path, **settings: Any) -> Outcome:
    """Write a fault's class into a file of a folder, and check it from there.

    What it leaves in /var/tmp is left, and looked for, in a folder of its own: other processes' checks watch that one.
    """
    own = folder / "var-tmp"
    own.mkdir(exist_ok=True)
    code = fault.code.replace("/var/tmp", str(own))
    (folder / "planted.py").write_text(HEAD + code, encoding="utf-8")
    with working_in(folder), patch.dict(resources.SHARED, {"file in /var/tmp": str(own)}):
        return check(f"{folder / 'planted.py'}:Fault", **settings)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """With that as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


CORRECT: list[tuple[str, Any, dict[str, Any]]] = [
    *(
        (f"{name} {' '.join(f'{key}={value}' for key, value in options.items())}".strip(), name, options)
        for name, options in (
            ("calculator", {}),
            ("castle", {}),
            ("castle", {"locks": 1, "width": 3, "height": 3}),
            ("data_analysis", {}),
            ("document_search", {}),
            ("kuhn_poker", {}),
            ("liars_dice", {}),
            ("math_tools", {}),
            ("negotiation", {}),
            ("negotiation", {"rounds": 2}),
            ("retail", {}),
            ("retail", {"level": 1}),
            ("retail", {"level": 2}),
            ("retail", {"customer": "policy"}),
            ("text_adventure", {}),
            ("text_adventure", {"level": 3}),
        )
    ),
    *((cls.__name__, cls, {}) for cls in (worlds.Shop, worlds.Quiz, worlds.Parity, worlds.Walk, worlds.Duel)),
    *((cls.__name__, cls, {}) for cls in (worlds.Auction, Till, Basket)),
    *((cls.__name__, cls, {}) for cls in HONEST),
]
"""Environments without a fault: name, target, options."""

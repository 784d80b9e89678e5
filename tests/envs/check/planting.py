"""Faults of ordinary authors and environments without any: planted, checked, and whether the right reason is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentrl.envs.base import Env
from agentrl.envs.check import Finding, Note, check_env
from tests.envs.broken_envs import Basket, Till
from tests.envs.check import worlds
from tests.envs.honest_envs import HONEST

FAULTS = Path(__file__).with_name("faults.yaml")
HEAD = "from tests.envs.check.worlds import *\n"
SMALL = {"tasks": 2, "scored": 24, "seconds": 60.0, "hostile": 1}
"""Settings with which a fault is still found."""


@dataclass(frozen=True)
class Fault:
    """A fault: the class that has it, the rule that finds it, and what the finding must hold."""

    name: str
    rule: str
    words: str
    code: str


@dataclass
class Outcome:
    """What a check said."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def names(self, fault: Fault) -> bool:
        """Whether the fault was found for the right reason."""
        return any(one.rule == fault.rule and fault.words in one.message for one in self.findings)


def faults() -> list[Fault]:
    """All of them."""
    return [Fault(**each) for each in yaml.safe_load(FAULTS.read_text(encoding="utf-8"))]


def check(env: str | Callable[..., Env], **settings: Any) -> Outcome:
    """Check an environment."""
    outcome = Outcome()

    def report(event: Any) -> None:
        if isinstance(event, Note):
            outcome.notes.append(event)

    outcome.findings = check_env(env, report=report, **{**SMALL, **settings})
    return outcome


def check_fault(fault: Fault, folder: Path, **settings: Any) -> Outcome:
    """Write a fault's class into a file of a folder, and check it from there."""
    (folder / "planted.py").write_text(HEAD + fault.code, encoding="utf-8")
    with working_in(folder):
        try:
            return check(f"{folder / 'planted.py'}:Fault", **settings)
        finally:
            for left in Path("/var/tmp").glob("agentrl-planted-*"):
                left.unlink(missing_ok=True)


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

"""The conformance suite of metrics back ends."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.plugins.suites.findings import expect, find_problems
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.train.trackers import TRACKERS, Tracker
from agentrl.train.trackers.base import TrackedRun

NUMBERS = {"reward/mean": 0.5, "loss": -1e-9, "eval/mean": math.nan, "grad_norm": math.inf, "time/step": 1e9}


@dataclass
class _Subject:
    """A back end's class, and a run's folder."""

    kind: type[Tracker]
    about: TrackedRun


def it_takes_whatever_a_step_measures(subject: _Subject) -> None:
    """It logs steps with any finite or other numbers, with a name more or less, and closes."""
    tracker = subject.kind(subject.about)
    tracker.log(1, NUMBERS)
    tracker.log(2, {**NUMBERS, "another/name": 1.0})
    tracker.log(4, {})
    tracker.close()


def it_opens_again_for_a_resumed_run(subject: _Subject) -> None:
    """The same run's next process opens it, hears which step it has, and goes on."""
    tracker = subject.kind(subject.about)
    last = tracker.last()
    expect(last is None or last <= 4, f"last() is {last}, and the last step was 4")
    expect(not (subject.kind.rewritten and last), f"it is rewritten from nothing, and last() is {last}")
    for step in range(1 if subject.kind.rewritten else 5, 7):
        tracker.log(step, NUMBERS)
    tracker.close()


CHECKS: tuple[Callable[[_Subject], None], ...] = (it_takes_whatever_a_step_measures, it_opens_again_for_a_resumed_run)


def check_tracker(tracker: str | type[Tracker], folder: Path | None = None) -> list[ContractFinding]:
    """Find promises that a metrics back end does not keep; it gets six steps of a run that never was.

    Args:
        tracker: a name, an import path, `file.py:CLASS`, or the class.
        folder: the run's; None is a temporary one.

    Returns:
        What is wrong; nothing, where the back end keeps its contract.

    Raises:
        UnknownName: there is none of that name.
    """
    kind = TRACKERS.find(tracker) if isinstance(tracker, str) else tracker
    with tempfile.TemporaryDirectory() as temporary:
        about = TrackedRun(folder or Path(temporary), "conformance", {"seed": 0})
        return find_problems(CHECKS, _Subject(kind, about))

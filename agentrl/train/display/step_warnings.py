"""Warnings about a step, by its numbers and its sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl.config import RunConfig
from agentrl.rollout.stream.health import HealthMonitor, sampling_notes, sessions_of
from agentrl.rollout.workers.held import ToolCalls, calls_of
from agentrl.train.algorithms import Algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver import minibatches
from agentrl.types import MAIN, Group

APART = ("mismatch/abs_mean", "staleness/abs_mean")
"""Metrics of how far the policy is from what sampled the tokens of a run that reads them."""
NEAR = 0.5
"""Nats a token in the mean up to which a policy is near to what sampled: its ratios are mostly within the clip."""
ENOUGH = 50
"""Turns with tools on offer without a call that are suspicious."""


@dataclass(frozen=True)
class StepWarnings:
    """The warnings of a run's steps.

    Attributes:
        algorithm: likewise.
        display: says what is said once.
        conversation_format: the policy's renderer.
        reads: whether sessions are read and not generated; they were looked at when the run began.
        health: looks at sessions over several steps.
    """

    config: RunConfig
    algorithm: Algorithm
    display: Display
    conversation_format: str
    reads: bool
    health: HealthMonitor

    def find(self, step: int, groups: Sequence[Group], row: Mapping[str, float]) -> Iterator[str]:
        """Yield the warnings of a step; those that are said once are said here."""
        if note := minibatches.describe_updates(row, self.config.algo):
            self.display.warn_once(note)
        for name in self.config.learners:
            skipped = row.get("skipped_updates" if name == MAIN else f"{name}/skipped_updates", 0.0)
            yield from (f"step {step}: {each}" for each in self.health.check_updates(name, skipped))
        best, evaluated = self.config.keep_best, sorted(name for name in row if name.startswith("eval/"))
        if best is not None and evaluated and not math.isfinite(row.get(best.removeprefix("-"), math.nan)):
            self.display.warn_once(
                f"keep_best={best}: an evaluation has no such number, so its checkpoint is not "
                f"among the best ones (there are: {', '.join(evaluated)})"
            )
        signal = bool(row.get("pack/signal", True))
        if self.reads:
            yield from (f"step {step}: {each}" for each in self.health.check_signal(sessions_of(groups), signal=signal))
            needs = self.algorithm.needs
            ratios = needs.engine and not (needs.pairs or needs.labels)
            if ratios and (apart := max(row.get(name, 0.0) for name in APART)) > NEAR:
                self.display.warn_once(
                    f"the recorded tokens' log-probabilities are {apart:.2g} nats from this model's, in the mean: "
                    "another policy sampled them, and clipped ratios teach little; "
                    "model=RUN/checkpoints/step-N is nearer"
                )
            return
        if row.get("mismatch/abs_mean", 0.0) > self.config.mismatch_bound:
            yield (
                f"step {step}: engine and trainer disagree: mean |Δ log-probability| "
                f"{row['mismatch/abs_mean']:.2g} is over mismatch_bound={self.config.mismatch_bound:g}"
            )
        if warning := describe_unread_calls(self.conversation_format, map(calls_of, sessions_of(groups))):
            yield f"step {step}: {warning}"
        for warning in self.health.check(groups, signal=signal):
            yield f"step {step}: {warning}"
        for note in sampling_notes(sessions_of(groups), trained=True):
            self.display.warn_once(note)


def describe_unread_calls(conversation_format: str, sessions: Iterable[ToolCalls]) -> str | None:
    """Return a warning where there are tools and no session's call ever parses: parser and model may not fit."""
    calls = list(sessions)
    turns = sum(each.turns for each in calls)
    if turns < ENOUGH or any(each.good for each in calls):
        return None
    malformed = sum(each.malformed for each in calls)
    found = f"{malformed} malformed ones" if malformed else "nothing that looks like one"
    return (
        f"No tool call could be read in {turns} turns with tools on offer ({found}): the renderer "
        f"{conversation_format!r} may not fit this model. `agentrl check renderer=<model>` shows which parser does."
    )

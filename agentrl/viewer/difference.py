"""`agentrl diff RUN RUN`: what differs between two runs: settings, metrics, learning curves, tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from agentrl.common.untrusted import visible_text
from agentrl.envs.data import identity
from agentrl.errors import AgentRLError
from agentrl.sessions.store.query import Filters
from agentrl.train.display.panel import short, sparkline
from agentrl.viewer import series
from agentrl.viewer.runs import Run
from agentrl.viewer.series import WINDOW, mean

COMPARED = ("reward/", "eval/", "sessions/", "status/", "policy/", "loss", "grad_norm", "throughput/", "time/step")
"""Beginnings of the names of metrics that are compared; the viewer shows all."""
PLACES = ("run_dir", "resume")
"""Settings that differ between any two runs."""
MOST_TASKS = 20
CURVE = 60
"""Columns of a curve, at most."""


@dataclass(frozen=True, slots=True)
class TaskDifference:
    """The mean scores that two runs have on a task, over `sessions` each."""

    task: str
    scores: tuple[float, float]
    sessions: tuple[int, int]

    @property
    def change(self) -> float:
        """By how much the second run is better."""
        return self.scores[1] - self.scores[0]


def settings(a: Run, b: Run) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by name; None where a run has no such setting."""
    first, second = a.settings(), b.settings()
    both = {name: (first.get(name), second.get(name)) for name in [*first, *second] if name not in PLACES}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def metrics(a: Run, b: Run) -> dict[str, tuple[float, float]]:
    """The numbers that both runs have and that differ: means over their last steps, or an evaluation's results."""
    first, second = _numbers(a), _numbers(b)
    both = {name: (value, second[name]) for name, value in first.items() if name in second}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _numbers(run: Run) -> dict[str, float]:
    if (evaluation := run.evaluation()) is not None:
        found = {"mean": evaluation.get("mean"), **(evaluation.get("metrics") or {})}
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    rows = run.metrics.rows()
    means = {name: mean(rows[-WINDOW:], name) for name in series.names(rows) if name.startswith(COMPARED)}
    return {name: value for name, value in means.items() if value is not None}


def last_evaluations(runs: Sequence[Run]) -> list[int | None] | None:
    """The step of each run's last evaluation (None: an evaluation by itself); None where one has none.

    Raises:
        ConfigError: a run has no sessions.
        StoreError: they can't be read.
    """
    found = [[*run.store().counts("step", {"phase": "eval"})] for run in runs]
    if not all(found):
        return None
    return [max((step for step in steps if step is not None), default=None) for steps in found]


def tasks(a: Run, b: Run) -> tuple[str, list[TaskDifference]]:
    """The tasks of both runs whose mean score differs, the largest change first, and which sessions are compared.

    Those are the ones of the runs' last evaluations, or all that were trained on where one has no evaluation.
    """
    steps = last_evaluations((a, b))
    chosen: list[Filters] = [{"phase": "train"}] * 2 if steps is None else [{"phase": "eval", "step": s} for s in steps]
    first, second = (run.store().mean_scores("task", wanted) for run, wanted in zip((a, b), chosen, strict=True))
    found = [
        TaskDifference(task, (score, second[task][0]), (count, second[task][1]))
        for task, (score, count) in first.items()
        if task in second and score != second[task][0]
    ]
    return _describe(steps), sorted(found, key=lambda each: (-abs(each.change), each.task))


def _describe(steps: Sequence[int | None] | None) -> str:
    if steps is None:
        return "all training sessions"
    return "the evaluations" if None in steps else f"the evaluations after steps {steps[0]} and {steps[1]}"


def differences(a: Run, b: Run, width: int) -> Iterator[RenderableType]:
    """Yield the differences, to be printed `width` columns wide."""
    changed = settings(a, b)
    yield Text("settings" if changed else "settings: the same", "bold")
    if changed:
        yield _table(a, b, [(name, str(one), str(other)) for name, (one, other) in changed.items()])
    yield Text(f"metrics, means of the last {WINDOW} steps", "bold")
    numbers = metrics(a, b)
    yield _table(
        a, b, [(name, short(one), short(other), f"{other - one:+.3g}") for name, (one, other) in numbers.items()]
    )
    yield from _curves(a, b, width)
    if "env.name" in changed:  # their tasks may have the same ids, and nothing else in common
        yield Text("tasks: not compared, since the environments differ", "bold")
        return
    if other := identity.differences(a.data(), b.data()):
        yield Text(f"tasks: not compared, since the data differs: {visible_text('; '.join(other))}", "bold")
        return
    try:
        said, found = tasks(a, b)
    except AgentRLError as error:
        yield Text(f"tasks: not compared: {visible_text(str(error))}", "bold")
        return
    better = sum(each.change > 0 for each in found)
    yield Text(f"tasks by {said}: {better} better, {len(found) - better} worse in {visible_text(b.name)}", "bold")
    lines = [
        (each.task, f"{short(each.scores[0])} ({each.sessions[0]})", f"{short(each.scores[1])} ({each.sessions[1]})")
        for each in found[:MOST_TASKS]
    ]
    yield _table(a, b, [(*line, f"{each.change:+.3g}") for line, each in zip(lines, found, strict=False)])
    if len(found) > MOST_TASKS:
        yield Text(f"and {len(found) - MOST_TASKS} more")


def _table(a: Run, b: Run, lines: list[tuple[str, ...]]) -> Table:
    table = Table(
        Column("", overflow="fold", ratio=2),
        *(Column(Text(visible_text(run.name, keep="")), overflow="fold", ratio=1) for run in (a, b)),
        Column("", no_wrap=True, justify="right"),
        box=None,
        pad_edge=False,
    )
    for line in lines:
        table.add_row(*(Text(visible_text(cell, keep="")) for cell in line))
    return table


def _curves(a: Run, b: Run, width: int) -> Iterator[Text]:
    """The rewards of both over their steps, on one scale of height and of length."""
    curves = [
        [row["reward/mean"] for row in run.metrics.rows() if isinstance(row.get("reward/mean"), int | float)]
        for run in (a, b)
    ]
    if not all(curves):
        return
    bounds = min(map(min, curves)), max(map(max, curves))
    names = [visible_text(run.name, keep="")[: width // 3] for run in (a, b)]
    label = max(map(len, names))
    yield Text("reward/mean by step", "bold")
    room, longest = min(width - label - 2, CURVE), max(map(len, curves))
    for name, curve in zip(names, curves, strict=True):
        part = 16 + max((room - 16) * len(curve) // longest, 1)
        yield Text(f"{name:<{label}}  {sparkline(curve, part, bounds)}", no_wrap=True, overflow="ellipsis")

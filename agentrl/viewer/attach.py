"""`agentrl top RUN`: a run's progress, drawn as the run itself draws it, from what it writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from agentrl.cluster.liveness import silences
from agentrl.common.untrusted import visible_text
from agentrl.errors import AgentRLError
from agentrl.train.display.console import PLAIN_WIDTH
from agentrl.train.display.panel import Panel, TimedProgress, clock, step_line
from agentrl.train.record import chain, lock
from agentrl.train.record.chain import StageState
from agentrl.viewer.runs import Run, RunStatus, run_at
from agentrl.viewer.series import Row

INTERVAL = 2.0
"""Seconds between two looks at the run's files."""
LABEL = "reward"


def attach(run: Run, out: Console, interval: float = INTERVAL) -> None:
    """Show the run until it ends: a panel on a terminal, a line for each new step anywhere else."""
    if not out.is_interactive:
        for line in lines(run, interval):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    with Live(panel(run), console=out, auto_refresh=False) as live:
        while run.summary()["state"] is RunStatus.RUNNING:
            time.sleep(interval)
            live.update(panel(run), refresh=True)


def attach_all(path: Path, out: Console, interval: float = INTERVAL) -> None:
    """Show the run in a folder; of a chain each stage from the one under way, until the chain's process ends."""
    if not chain.is_chain(path):
        return attach(run_at(path), out, interval)
    shown: set[Path] = set()
    while True:
        holder = lock.holder(path)
        run = run_at(path)
        if run.path not in shown:
            shown.add(run.path)
            done = sum(each.state is StageState.DONE for each in chain.read(path).stages)
            about = f"stage {run.name}: {done} of {len(chain.read(path).stages)} stages are done"
            out.print(visible_text(about, keep=""), markup=False, highlight=False, soft_wrap=True)
            attach(run, out, interval)
        elif holder is None or not holder.alive:
            return
        else:
            time.sleep(interval)


def lines(run: Run, interval: float = INTERVAL) -> Iterator[str]:
    """The last step so far, each new one, and how the run stands in the end, a line each."""
    seen = len(run.metrics.rows()) - 1
    while True:
        state, rows = run.summary()["state"], run.metrics.rows()
        for row in map(_numbers, rows[max(seen, 0) :]):
            yield step_line(_progress(run, int(row["step"])), LABEL, row.get("reward/mean", 0.0), row, PLAIN_WIDTH)
        seen = len(rows)
        if state is not RunStatus.RUNNING:
            yield visible_text(f"{_title(run)}; {_detail(run)}", keep="")
            return
        time.sleep(interval)


def panel(run: Run) -> Panel:
    """The run as it stands."""
    rows = [_numbers(row) for row in run.metrics.rows()]
    row = rows[-1] if rows else {}
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    bars = [_progress(run, int(row.get("step", 0)))]
    return Panel(bars, _detail(run), LABEL, rewards, row, visible_text(_title(run), keep=""))


def _numbers(row: Row) -> dict[str, float]:
    """A row without what is no number: JSON has null for one that is not finite."""
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def _progress(run: Run, done: int) -> TimedProgress:
    """The steps done; the time is what they took."""
    summary = run.summary()
    spent = sum(row.get("time/step", 0.0) for row in run.metrics.rows()[:done])
    bar = TimedProgress(summary["kind"], summary["steps"] or 0, began=time.monotonic() - spent)
    bar.done = done
    return bar


def _title(run: Run) -> str:
    summary = run.summary()
    named = " · ".join(str(summary[key]) for key in ("environment", "model", "algorithm") if summary[key])
    return f"{run.name}: {summary['state']} ({named})"


def _detail(run: Run) -> str:
    """The silent workers, the number of stored sessions, how they ended, and when the run last wrote."""
    running = run.summary()["state"] is RunStatus.RUNNING
    try:
        ended = run.store().counts() if run.database.exists() else {}
        said = ", ".join(f"{count:,} {status}" for status, count in sorted(ended.items(), key=lambda item: -item[1]))
    except AgentRLError as error:
        said = "" if running else f"can't be read: {error}"  # at its start a store has no tables yet
    written = f"written {clock(max(time.time() - run.updated(), 0.0))} ago"
    silent = [visible_text(each, keep="") for each in silences(run.path / "logs") if running]
    return "; ".join(filter(None, (*silent, f"sessions: {said}" if said else "", written)))

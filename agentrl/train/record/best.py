"""The checkpoints that a run keeps: the newest, and the best one by a metric of its evaluations (`keep_best`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from agentrl.common.scratch import remove
from agentrl.train.driver.resuming import step_of
from agentrl.train.record.files import write_atomically

BEST = "best.json"
"""In the run's folder: the best checkpoint, with the metric and its value."""
Row = Mapping[str, float]


def best_checkpoint(checkpoints: Sequence[Path], rows: Sequence[Row], metric: str) -> tuple[Path, float] | None:
    """Return the checkpoint with the best value, the newest of equal ones; None where none was measured.

    Args:
        checkpoints: oldest first.
        rows: the run's metrics.
        metric: its name, of which the highest value is the best; with `-` before it the lowest.
    """
    name, sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
    measured = {int(row["step"]): row[name] for row in rows if math.isfinite(row.get(name, math.nan))}
    found = [(sign * measured[step_of(each)], each) for each in checkpoints if step_of(each) in measured]
    if not found:
        return None
    value, best = max(found, key=lambda pair: (pair[0], step_of(pair[1])))
    return best, sign * value


def remove_superseded(
    run: Path, checkpoints: Sequence[Path], keep: int, metric: str | None, rows: Callable[[], Sequence[Row]]
) -> None:
    """Remove all checkpoints but the newest `keep` and the best, which `best.json` names."""
    best = None if metric is None else write_best(run, checkpoints, rows(), metric)
    for old in checkpoints[:-keep]:
        if best is None or old != best[0]:
            remove(old)


def write_best(run: Path, checkpoints: Sequence[Path], rows: Sequence[Row], metric: str) -> tuple[Path, float] | None:
    """Write `best.json`, and return what `best_checkpoint` does."""
    if best := best_checkpoint(checkpoints, rows, metric):
        said = {"checkpoint": best[0].name, "metric": metric.removeprefix("-"), "value": best[1]}
        write_atomically(run / BEST, orjson.dumps(said) + b"\n")
    return best


def describe_best(
    run: Path, checkpoints: Sequence[Path], rows: Sequence[Row], metric: str | None, last: Row
) -> Iterator[str]:
    """Yield the line that names the best checkpoint at the end of a run, whose `last` evaluation is in no row."""
    if metric is not None and (best := write_best(run, checkpoints, [*rows, last], metric)):
        yield f"best checkpoint by {metric}: {best[0]} ({best[1]:.4g})"

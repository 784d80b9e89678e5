"""A run's metrics, read as the run writes them: only what was added since the last reading is parsed."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

Row = dict[str, Any]
WINDOW = 10
"""The last steps of which a mean says how a run is doing."""


class MetricsFile:
    """The rows of a metrics.jsonl that another process may be writing; safe for several threads.

    A run only appends, and a resumed one replaces the file, so another inode is another `epoch`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read, self._rows = 0, list[Row]()
        self.epoch = 0

    def rows(self) -> list[Row]:
        """All whole rows so far; damaged lines are left out."""
        with self._lock:
            try:
                with open(self._path, "rb") as file:
                    stat = os.fstat(file.fileno())
                    if stat.st_ino != self.epoch or stat.st_size < self._read:
                        self.epoch, self._rows, self._read = stat.st_ino, [], 0
                    file.seek(self._read)
                    data = file.read()
            except OSError:  # no step is done yet
                return []
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            self._rows += [row for line in whole.splitlines() if (row := _row(line)) is not None]
            return list(self._rows)


def _row(line: bytes) -> Row | None:
    try:
        row = orjson.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def mean(rows: Iterable[Row], name: str) -> float | None:
    """The mean of a number over the rows that have it; None where none has."""
    values = [value for row in rows if (value := number(row.get(name))) is not None]
    return fmean(values) if values else None


def names(rows: Iterable[Row]) -> list[str]:
    """The names of all numbers in the rows, in the order in which they first appear."""
    found: dict[str, None] = {}
    for row in rows:
        if row.keys() - found.keys():
            found |= dict.fromkeys(name for name in row if name != "step")
    return list(found)


def columns(rows: list[Row], wanted: Iterable[str], start: int = 0) -> dict[str, Any]:
    """The rows from `start` on as columns: `step`, `hours` (training time so far), and those of the wanted numbers.

    A number that a row lacks, or that is not finite, is None.
    """
    hours = list(accumulate(number(row.get("time/step")) or 0.0 for row in rows))
    return {
        "step": [row["step"] for row in rows[start:]],
        "hours": [each / 3600 for each in hours[start:]],
        "values": {name: [number(row.get(name)) for row in rows[start:]] for name in wanted},
    }


def number(value: Any) -> float | None:
    """Return a file's value as a number; None where it is none, or not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def thinned(values: list[float | None], most: int) -> list[float]:
    """At most `most` of the numbers, evenly spaced, the last one included: for a sparkline."""
    known = [value for value in values if value is not None]
    if len(known) <= most:
        return known
    return [known[round(place * (len(known) - 1) / (most - 1))] for place in range(most)]

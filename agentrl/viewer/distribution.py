"""What a run's sessions count up to: their scores step by step, and the values that they are filtered by."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentrl.sessions.store import edited, schema
from agentrl.sessions.store.query import Filters, condition
from agentrl.viewer.runs import Run

BINS = 12
MOST_COLUMNS = 120
"""Columns of the picture; several steps share one where there are more."""
COLUMNS = ("status", "phase", "environment", "blame")
AGENTS = "SELECT value, count(*) FROM summaries, json_each(agents) GROUP BY value"
KEEPS_CALLS = "SELECT 1 FROM sqlite_master WHERE name = 'calls'"
TOOLS = "SELECT tool, count(*) FROM calls GROUP BY tool ORDER BY 2 DESC, 1 LIMIT 100"
"""The most used ones: a model can call tools by any name."""


def distribution(path: Path, filters: Filters) -> dict[str, Any]:
    """Counts of a store's sessions by step and score, of those that have both and fit the filters.

    Returns:
        `low` and `high`, the range of the scores, in `bins` equal parts; `steps`, those of a column; and `counts`, a
        list of [first step of the column, bin, count].

    Raises:
        StoreError: reading failed.
    """
    where, values = condition(filters)
    select = f"SELECT step, score FROM summaries WHERE {where} AND step IS NOT NULL AND score IS NOT NULL"
    rows = select_rows(path, select, values)  # SQLite's own grouping would sort them: twice as long
    if not rows:
        return {"low": 0.0, "high": 1.0, "bins": BINS, "steps": 1, "counts": []}
    steps, scores = zip(*rows, strict=True)
    low, high = min(scores), max(scores)
    width = max((high - low) / BINS, 1e-12)
    span = -(-(max(steps) - min(steps) + 1) // MOST_COLUMNS)
    counts = Counter((step // span * span, min(int((score - low) / width), BINS - 1)) for step, score in rows)
    found = [[column, place, count] for (column, place), count in sorted(counts.items())]
    return {"low": low, "high": high, "bins": BINS, "steps": span, "counts": found}


def facets(run: Run) -> dict[str, dict[str, int]]:
    """The counts by filter and value.

    Raises:
        ConfigError: the run has no sessions.
        StoreError: they can't be read.
    """
    store, file = run.store(), run.database
    found: dict[str, dict[str, int]] = {
        name: {str(key): count for key, count in store.counts(name).items() if key} for name in COLUMNS
    }
    tools: list[tuple[Any, ...]] = select_rows(file, TOOLS) if select_rows(file, KEEPS_CALLS) else []
    return {**found, "agent": dict(select_rows(file, AGENTS)), "tool": dict(tools), "tag": run.notes.counts()}


def select_rows(path: Path, select: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query over a store that a run may be writing.

    Raises:
        StoreError: reading failed.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            edited.show(db, path)
            return db.execute(select, values).fetchall()
    except sqlite3.Error as error:
        raise schema.failure(str(path), error) from error

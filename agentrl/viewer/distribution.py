"""The distribution of sessions' scores, step by step."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agentrl.common import formats
from agentrl.sessions.store import edited, schema
from agentrl.sessions.store.query import Filters, condition

BINS = 12
MOST_COLUMNS = 120
"""Columns of the picture; several steps share one where there are more."""


def distribution(path: Path, filters: Filters) -> dict[str, Any]:
    """Counts of a store's sessions by step and score, of those that have both and fit the filters.

    Returns:
        `low` and `high`, the range of the scores, in `bins` equal parts; `steps`, those of a column; and `counts`, a
        list of [first step of the column, bin, count].
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


def select_rows(path: Path, select: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query over a store that a run may be writing."""
    try:
        with closing(formats.connect_to_read(path)) as db:
            edited.show(db, path)
            return db.execute(select, values).fetchall()
    except sqlite3.Error as error:
        raise schema.failure(str(path), error) from error

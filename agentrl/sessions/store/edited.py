"""Scores as people left them: a query's column `score` has those of `edits.jsonl` where there are some.

Nothing of the store changes: the connection gets a view by the name of the table of summaries, which has the last edit
of each session in place of the score that was measured. That one is the column `measured`, in any store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import StoreError
from agentrl.sessions.store.summary import COLUMNS

FILE = "edits.jsonl"
"""Beside the store: a line for each edit, in their order (`rollout.episodes.edits`)."""
STORE = "sessions.db"
"""The store that edits are of; that of replays beside it has none."""
MEASURED = "measured"
MEASURED_SCORE = "(SELECT kept.score FROM main.summaries AS kept WHERE kept.session = summaries.session)"
"""The column `measured`, of a row of `summaries`."""
_COLUMNS = ", ".join('edited_score(id, score) AS "score"' if name == "score" else f'"{name}"' for name in COLUMNS)
_VIEW = f"CREATE TEMP VIEW IF NOT EXISTS summaries AS SELECT session, {_COLUMNS} FROM main.summaries"


def show(db: sqlite3.Connection, path: str | Path) -> None:
    """Have a connection that only reads find edited scores, as they are now.

    Raises:
        StoreError: the edits can't be read.
    """
    store = Path(path)
    if store.name != STORE:
        return
    now = scores(store.parent)
    if not now and db.execute("SELECT 1 FROM temp.sqlite_master WHERE name = 'summaries'").fetchone() is None:
        return
    db.create_function("edited_score", 2, lambda id_, score: now.get(id_, score), deterministic=True)
    db.execute(_VIEW)


def scores(folder: Path) -> Mapping[str, float]:
    """The last score of each session of a folder that was edited.

    Raises:
        StoreError: the edits can't be read.
    """
    return {edit["session"]: edit["score"] for edit in read_edits(folder)}


def read_edits(folder: Path) -> Sequence[Mapping[str, Any]]:
    """The edits of a folder, in their order, as they were written; none where nobody edited it.

    Raises:
        StoreError: they can't be read, or are damaged.
    """
    file = folder / FILE
    try:
        stat = file.stat()
        return _read(file, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"{str(file)!r}: {error.strerror}") from None
    except (ValueError, TypeError, LookupError) as error:
        raise StoreError(f"{str(file)!r} is damaged: {error}") from None


@lru_cache(maxsize=16)
def _read(file: Path, changed: int, size: int) -> Sequence[Mapping[str, Any]]:
    edits = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    return [{**edit, "session": edit["session"], "score": float(edit["score"])} for edit in edits]

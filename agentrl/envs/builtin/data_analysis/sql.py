"""A query of an agent's on a database that it can only read.

Every query opens the database anew from bytes in memory, so episodes share nothing and hold nothing open. SQLite's own
authoriser refuses everything but reading, and functions that give another result each time. A query stops after a
number of the virtual machine's instructions, so it stops at the same place on any machine.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from agentrl.errors import ToolError

MAX_ROWS = 50
"""Rows that a query shows."""
MAX_CELL = 200
"""Characters of a value that are shown."""
MAX_QUERY = 4_000
"""Characters of a query."""
INSTRUCTIONS_EACH, STEPS = 10_000, 500
"""A query may take their product in instructions of SQLite's virtual machine: about a tenth of a second."""
MAX_VALUE = 100_000
"""Bytes of a text or a row."""
FORBIDDEN = frozenset({"random", "randomblob", "load_extension", "zeroblob", "date", "time", "datetime", "julianday"})
"""Functions that give another result each time, or a large one."""
READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
Row = tuple[Any, ...]


def run_query(database: bytes, query: str) -> str:
    """The result of one read-only query as a table of text.

    Raises:
        ToolError: it is not allowed, wrong, or takes too long; in words for the model.
    """
    if len(query) > MAX_QUERY:
        raise ToolError(f"the query has {len(query)} characters; at most {MAX_QUERY} are allowed")
    try:
        names, rows = select(database, query)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: characters that SQLite can't take
        raise ToolError(_words(str(error))) from None
    shown = [" | ".join(cell(value) for value in row) for row in rows[:MAX_ROWS]]
    more = [f"(more than {MAX_ROWS} rows; these are the first)"] if len(rows) > MAX_ROWS else []
    return "\n".join([" | ".join(name[:MAX_CELL] for name in names), *shown, *more])


def select(database: bytes, query: str) -> tuple[list[str], list[Row]]:
    """The names of the columns and the first rows of a query.

    Raises:
        sqlite3.Error: it is not allowed, wrong, or takes too long.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_CELL)
        steps = iter(range(STEPS))
        connection.set_progress_handler(lambda: next(steps, None) is None, INSTRUCTIONS_EACH)
        connection.set_authorizer(_authorise)
        cursor = connection.execute(query)
        if cursor.description is None:
            raise sqlite3.OperationalError("it selects nothing")
        return [column[0] for column in cursor.description], cursor.fetchmany(MAX_ROWS + 1)


def _authorise(action: int, first: str | None, second: str | None, *others: Any) -> int:
    """Of SQLite's authoriser: a function's name is the second argument."""
    allowed = action in READS or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in FORBIDDEN)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def cell(value: Any) -> str:
    """A value as text, cut; a number without trailing zeros."""
    text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CELL else text[:MAX_CELL] + "…"


def _words(error: str) -> str:
    if "not authorized" in error or "authorization denied" in error:
        return f"only SELECT is allowed, without the clock and chance ({error})"
    return "the query takes too long" if "interrupted" in error else error

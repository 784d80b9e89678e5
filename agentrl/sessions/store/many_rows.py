"""Statements that write many rows at once.

The interpreter's lock is given up at each step of SQLite, and a busy event loop takes milliseconds to hand it back. So
the number of its steps decides what a commit takes, and rows that are written together are one step.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

Row = tuple[Any, ...]
MOST_ROWS = 256
"""Rows of one statement: 256 of the widest table are far from SQLite's limit of 32,766 values."""


def insert(db: sqlite3.Connection, table: str, columns: str, rows: Sequence[Row], *, replace: bool = False) -> None:
    """Insert rows of the values of `columns` (names, separated by commas); `replace`: in place of older ones."""
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    for part in _parts(rows):
        db.execute(_insertion(verb, table, columns, len(part)), _values(part))


def update(db: sqlite3.Connection, table: str, key: str, columns: str, rows: Sequence[Row]) -> int:
    """Write the values of `columns` in the rows that have a key; each of `rows` is a key and these values.

    Returns:
        The rows that there were.
    """
    return sum(db.execute(_update(table, key, columns, len(part)), _values(part)).rowcount for part in _parts(rows))


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in parts whose lengths are powers of two, so that few different statements are prepared."""
    at = 0
    while at < len(rows):
        count = min(MOST_ROWS, 1 << (len(rows) - at).bit_length() - 1)
        yield rows[at : at + count]
        at += count


def _values(rows: Sequence[Row]) -> list[Any]:
    return [value for row in rows for value in row]


@functools.cache
def _insertion(verb: str, table: str, columns: str, count: int) -> str:
    return f"{verb} INTO {table} ({columns}) {_placeholders(columns.count(',') + 1, count)}"


@functools.cache
def _update(table: str, key: str, columns: str, count: int) -> str:
    names = columns.split(", ")
    changes = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(names, 2))
    return (
        f"UPDATE {table} SET {changes} FROM ({_placeholders(len(names) + 1, count)}) AS new WHERE {key} = new.column1"
    )


def _placeholders(columns: int, count: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * count)}"

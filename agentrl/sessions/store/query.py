"""Queries over the summaries of a store's sessions: filter, sort, page. No session is read.

A page begins after the last row of the previous one (its `next`), by that row's value, so sessions that are written
between two queries neither shift a page nor appear twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agentrl.errors import InvalidInput, unknown_name
from agentrl.sessions.store import expressions
from agentrl.sessions.store.edited import MEASURED, MEASURED_SCORE
from agentrl.sessions.store.summary import COLUMNS, SELECTED, Summary, summary_from

Filters = Mapping[str, Any]
"""Column -> what it must be: a value, several (a list, tuple or set), None for absent, `Between`, `Contains`,
or `Without`.

Besides the summaries' columns there are `measured` (the score before anybody edited it), `agent` (one of the
session's), `tool` (one that it called), `reward/NAME`, and `where`: conditions in words (a list of them), which all
hold; see `expressions`.
"""
WHERE = "where"
MOST_PARAMETERS = 500
"""Values of a filter that are parameters each; SQLite takes 999 in all, or 32,766."""
OF_SESSION = {
    "agent": ("value", "SELECT 1 FROM json_each(agents) WHERE"),
    "tool": ("tool", "SELECT 1 FROM calls WHERE calls.session = summaries.session AND"),
}
"""Filters of which a session has several values: the value, and where a condition on it holds for one of them."""


@dataclass(frozen=True, slots=True)
class Between:
    """Values from `low` to `high`, both included; None is no bound."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Contains:
    """Texts that contain `text`, whatever the case of ASCII letters."""

    text: str


@dataclass(frozen=True, slots=True)
class Without:
    """Anything but `value`, absence included."""

    value: str


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some of the sessions that were found.

    Attributes:
        rows: in order.
        next: `after` of the next page; None for the last one.
        last: `after` of what is stored after these, if they are in no other order; None where there are none.
    """

    rows: list[Summary]
    next: str | None
    last: str | None = None


def find(
    db: sqlite3.Connection, filters: Filters, sort: str | None, descending: bool, limit: int, after: str | None
) -> SessionPage:
    """A page of sessions; see `Store.find`."""
    if not 1 <= limit <= 100_000:
        raise InvalidInput(f"limit={limit} must be between 1 and 100000")
    where, values = condition(filters)
    expression, names = ("session", []) if sort is None else _expression(sort)
    last = _cursor(after)
    order, sign = ("DESC", "<") if descending else ("ASC", ">")
    rows: list[tuple[Any, ...]] = []
    if last is None or last[0] is not None:
        beyond, given = ("", []) if last is None else (f" AND ({expression}, session) {sign} (?, ?)", [*names, *last])
        rows = db.execute(
            _page(f"{where} AND {expression} IS NOT NULL{beyond}", expression, order),
            [*names, *values, *names, *given, *names, limit + 1],
        ).fetchall()
    if len(rows) <= limit and sort is not None:  # those without a value come last, in both directions
        beyond, given = ("", []) if last is None or last[0] is not None else (f" AND session {sign} ?", [last[1]])
        rows += db.execute(
            _page(f"{where} AND {expression} IS NULL{beyond}", "NULL", order),
            [*values, *names, *given, limit + 1 - len(rows)],
        ).fetchall()
    last_row = orjson.dumps(rows[:limit][-1][-2:]).decode() if rows else None
    found = [summary_from(row[:-2]) for row in rows[:limit]]
    return SessionPage(found, last_row if len(rows) > limit else None, last_row)


def _page(where: str, expression: str, order: str) -> str:
    """Selects the keys first, and reads full rows only for those."""
    by = "" if expression == "NULL" else f"{expression} {order}, "
    return (
        f"SELECT {SELECTED}, value, key FROM (SELECT {expression} AS value, session AS key FROM summaries "
        f"WHERE {where} ORDER BY {by}session {order} LIMIT ?) "
        f"CROSS JOIN summaries ON session = key ORDER BY value {order}, key {order}"
    )


def counts(db: sqlite3.Connection, filters: Filters, by: str) -> dict[Any, int]:
    """Return the number of sessions that fit the filters, for each value of the column `by`."""
    where, values = condition(filters)
    expression, names = _expression(by)
    query = f"SELECT {expression}, count(*) FROM summaries WHERE {where} GROUP BY 1 ORDER BY 1"
    return dict(db.execute(query, [*names, *values]).fetchall())


def mean_scores(db: sqlite3.Connection, filters: Filters, by: str) -> dict[Any, tuple[float, int]]:
    """The mean score of the sessions that fit the filters and have one, and their number, for each value of `by`."""
    where, values = condition(filters)
    expression, names = _expression(by)
    select = f"SELECT {expression}, avg(score), count(score) FROM summaries"
    found = db.execute(f"{select} WHERE {where} AND score IS NOT NULL GROUP BY 1", [*names, *values])
    return {value: (mean, count) for value, mean, count in found}


def condition(filters: Filters) -> tuple[str, list[Any]]:
    """The filters as an SQL expression and its parameters.

    Where one names a group, its index is the one to search by: SQLite would read all sessions of a phase or status, as
    it takes its indexes to be equally good. A sign before a column keeps it from doing so.
    """
    parts, values = ["1"], list[Any]()
    indexed = isinstance(filters.get("group"), str)
    for name, wanted in filters.items():
        if name == WHERE:
            found = [expressions.condition(text) for text in ([wanted] if isinstance(wanted, str) else wanted)]
            tests = [(each.sql, list(each.values)) for each in found]
        elif name in OF_SESSION:
            expression, where = OF_SESSION[name]
            tests = [(f"EXISTS ({where} {part})", given) for part, given in _tests(expression, wanted)]
        elif name == "id" and isinstance(wanted, str | list | tuple | set | frozenset):  # which has no index here
            found_ids = _tests("id", wanted)
            tests = [(f"session IN (SELECT key FROM sessions WHERE {part})", given) for part, given in found_ids]
        else:
            expression, names = _expression(name)
            sign = "+" if indexed and name in ("phase", "status") else ""
            tests = [(part, [*names, *given]) for part, given in _tests(sign + expression, wanted)]
        for part, given in tests:
            parts.append(part)
            values += given
    return " AND ".join(parts), values


def _tests(expression: str, wanted: Any) -> list[tuple[str, list[Any]]]:
    if wanted is None:
        return [(f"{expression} IS NULL", [])]
    if isinstance(wanted, Between):
        sides = ((">=", wanted.low), ("<=", wanted.high))
        return [(f"{expression} {sign} ?", [bound]) for sign, bound in sides if bound is not None]
    if isinstance(wanted, Contains):
        text = wanted.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return [(f"{expression} LIKE ? ESCAPE '\\'", [f"%{text}%"])]
    if isinstance(wanted, Without):
        return [(f"{expression} IS NOT ?", [wanted.value])]
    if isinstance(wanted, list | tuple | set | frozenset):
        if len(wanted) > MOST_PARAMETERS:
            values = orjson.dumps(list(map(_value, wanted))).decode()
            return [(f"{expression} IN (SELECT value FROM json_each(?))", [values])]
        return [(f"{expression} IN ({', '.join('?' * len(wanted))})", list(map(_value, wanted)))]
    return [(f"{expression} = ?", [_value(wanted)])]


def _expression(name: str) -> tuple[str, list[Any]]:
    """A column or a reward as SQL, with its parameters."""
    if name in COLUMNS:
        return f'"{name}"', []
    if name == MEASURED:
        return MEASURED_SCORE, []
    kind, _, reward = name.partition("/")
    if kind == "reward" and reward and '"' not in reward:
        return "json_extract(rewards, ?)", [f'$."{reward}"']
    raise unknown_name("column", name, [*COLUMNS, MEASURED, *OF_SESSION, "reward/NAME", WHERE])


def _value(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value  # an enum's value


def _cursor(after: str | None) -> tuple[Any, int] | None:
    if after is None:
        return None
    try:
        value, session = orjson.loads(after)
        if isinstance(session, int) and (value is None or isinstance(value, str | int | float)):
            return value, session
    except (ValueError, TypeError):
        pass
    raise InvalidInput(f"after={after!r} is not the `next` of a page")

"""Text search in a session store that another process may be writing.

There is no index of words: it would double what a run writes with each turn, and finds words, while people look for
pieces of code, names and numbers. The pages of a query are read in their order and the messages of their sessions
searched, for a limited time; the next request goes on from there.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.errors import InvalidInput
from agentrl.sessions.store import edited, query, schema
from agentrl.sessions.store.query import Filters
from agentrl.sessions.store.summary import Summary

BATCH = 400
"""Sessions whose messages are searched by one query; SQLite takes 999 parameters."""
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]+')
"""Characters that JSON text has otherwise than the text itself."""


@dataclass(frozen=True, slots=True)
class SearchHits:
    """Sessions in which a text was found.

    Attributes:
        rows: in order.
        next: where to go on; None where all were searched.
        searched: how many sessions were.
    """

    rows: list[Summary]
    next: str | None
    searched: int


def search(
    path: Path,
    text: str,
    filters: Filters | None = None,
    *,
    sort: str | None = None,
    descending: bool = False,
    limit: int = 100,
    after: str | None = None,
    seconds: float = 0.5,
    batch: int = BATCH,
) -> SearchHits:
    """The sessions that fit the filters, in order, and have the text in a message, whatever the case of ASCII letters.

    Args:
        path: the session store.
        text: looked for in contents, reasoning, and the names and arguments of tool calls.
        filters: see `Store.find`, also for the next three.
        sort: a column.
        descending: from the largest value to the smallest.
        limit: ends the search once it has so many sessions; the last ones of a batch come besides.
        after: `SearchHits.next` of the search before this one.
        seconds: ends it after so long; `next` goes on.
        batch: sessions that are read at once.

    Raises:
        InvalidInput: the text is empty, or `after` is no `next`.
        StoreError: reading failed.
    """
    if not text:
        raise InvalidInput("text='': there is nothing to look for")
    until, rows, searched = time.monotonic() + seconds, list[Summary](), 0
    try:
        with closing(formats.connect_to_read(path)) as db:
            edited.show(db, path)
            while True:
                page = query.find(db, filters or {}, sort, descending, batch, after)
                holding = set(_holding(db, [row.id for row in page.rows], text))
                rows += [row for row in page.rows if row.id in holding]
                searched, after = searched + len(page.rows), page.next
                if after is None or len(rows) >= limit or time.monotonic() > until:
                    return SearchHits(rows, after, searched)
    except sqlite3.Error as error:
        raise schema.failure(str(path), error) from error


def _holding(db: sqlite3.Connection, ids: Sequence[str], text: str) -> Iterator[str]:
    """Those of the sessions that have the text; SQLite leaves few messages to read as JSON."""
    plain = max(_ESCAPED.split(text), key=len).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    select = (
        "SELECT sessions.id, message FROM sessions JOIN nodes ON session = key "
        f"WHERE sessions.id IN ({', '.join('?' * len(ids))}) AND message LIKE ? ESCAPE '\\'"
    )
    wanted = text.lower()
    for id_, message in db.execute(select, [*ids, f"%{plain}%"]):
        if any(wanted in each.lower() for each in _texts(orjson.loads(message))):
            yield id_


def _texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    for each in (content, message.get("reasoning_content"), message.get("name")):
        if isinstance(each, str):
            yield each
    for part in content if isinstance(content, list) else ():
        yield part.get("text") or ""
    for call in message.get("tool_calls") or ():
        yield call["function"]["name"]
        yield call["function"]["arguments"]

"""`agentrl sessions`: the sessions that fit filters and hold a text, in order, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from agentrl.common.untrusted import visible_text
from agentrl.errors import ConfigError
from agentrl.sessions.store.export import to_jsonl, to_parquet
from agentrl.sessions.store.query import Filters, Without
from agentrl.sessions.store.search import search
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.summary import Summary
from agentrl.viewer.filters import CONTROL, filters_of, phases_played
from agentrl.viewer.runs import Run
from agentrl.viewer.series import MetricsFile

FORMS = "COLUMN=VALUE, COLUMN=LOW..HIGH, COLUMN~=TEXT, trained=STEP, tag=NAME or where=CONDITION"

PAGE = 100_000
"""Rows that a store finds at once, at most."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of sessions, and how many are wanted; `sort=None` is the order in which they began."""

    sort: str | None = None
    descending: bool = False
    limit: int = 20


def filters(file: Path, words: Iterable[str]) -> Filters:
    """The filters that words such as `status=truncated` and `step=40..50` say; see `viewer.filters`.

    Raises:
        ConfigError: a word is none.
        InvalidInput: a range has an end that is no number.
    """
    pairs = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in CONTROL:
            raise ConfigError(f"{word!r} is no filter of sessions; filters are {FORMS}")
        pairs.append((name, value))
    return filters_of(Run(file.name, file.parent, MetricsFile(file.parent / "metrics.jsonl")), pairs)


def list_phases(file: Path) -> Without | str:
    """The phases of the sessions that a policy has played; see `viewer.filters`."""
    with Store(file, read_only=True) as store:
        return phases_played(store)


def matching(
    file: Path, wanted: Filters, order: Order, text: str = "", searched: Callable[[int], object] = int
) -> list[Summary]:
    """The first sessions, in order, that fit the filters and have the text in a message.

    Args:
        file: the session store.
        wanted: the filters.
        order: the order, and how many at most.
        text: looked for whatever the case of ASCII letters; '' is in every session.
        searched: is told now and then in how many sessions the text was looked for so far.

    Raises:
        UnknownName: a filter or the order names no column.
        StoreError: reading failed.
    """
    rows, after, done = list[Summary](), None, 0
    with Store(file, read_only=True) as store:
        while not text:
            most = min(order.limit - len(rows), PAGE)
            page = store.find(wanted, sort=order.sort, descending=order.descending, limit=most, after=after)
            rows, after = rows + page.rows, page.next
            if after is None or len(rows) >= order.limit:
                return rows
    while True:
        found = search(
            file, text, wanted, sort=order.sort, descending=order.descending, limit=order.limit - len(rows), after=after
        )
        rows, after, done = rows + found.rows, found.next, done + found.searched
        searched(done)
        if after is None or len(rows) >= order.limit:
            return rows[: order.limit]


def table(rows: Sequence[Summary]) -> Table:
    """The sessions in a table that is no wider than the terminal; ids are whole, so that they can be copied."""
    number = {"justify": "right", "no_wrap": True}
    drawn = Table(
        Column("session", overflow="fold"),
        *(Column(name, **number) for name in ("step", "score", "turns", "tokens")),  # type: ignore[arg-type]
        Column("ended", no_wrap=True),
        Column("task", no_wrap=True, overflow="ellipsis", ratio=1),
        Column("error", no_wrap=True, overflow="ellipsis", ratio=2),
        expand=True,
        box=None,
        pad_edge=False,
    )
    for row in rows:
        step, score = "" if row.step is None else str(row.step), "" if row.score is None else f"{row.score:.4g}"
        cells = (row.id, step, score, str(row.turns), str(row.tokens), row.status.value, row.task, row.error or "")
        drawn.add_row(*(Text(visible_text(cell, keep="")) for cell in cells))
    return drawn


def json_lines(rows: Iterable[Summary]) -> Iterator[str]:
    """The sessions' summaries as JSON in ASCII, one a line."""
    return (json.dumps(asdict(row)) for row in rows)


def export(file: Path, rows: Iterable[Summary], to: Path) -> None:
    """Write sessions of a store, whole, into a file (`sessions.store.export`).

    Raises:
        ConfigError: the file's name has no ending that says what it is to be.
        MissingExtra: Parquet's library is not installed.
    """
    kinds = {".jsonl": to_jsonl, ".parquet": to_parquet}
    if to.suffix not in kinds:
        raise ConfigError(f"--export {to}: the file's name must end in {' or '.join(kinds)}")
    with Store(file, read_only=True) as store:
        kinds[to.suffix]((store.load(row.id) for row in rows), to)

"""The trainer's log-probability of each token before the step that trains on it (`record_logprobs`), in `logprobs.db`.

The session store has the engine's, from when the token was sampled. Where the trainer had the same version, their
difference is how far engine and trainer disagree about this token; its exponential is always the ratio by which
corrections weigh it (`algo.correction`).

Written by one process, a transaction for each step, while others read. A step that is trained again replaces its rows.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.errors import StoreError
from agentrl.sessions.tree.codec import pack_numbers, unpack_numbers

NAME = "logprobs.db"
FLOATS = "f"
"""The kind of numbers in `array`: 32 bits, what trainers compute log-probabilities in."""
WAIT = 30.0
"""Seconds that a write waits for readers."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS logprobs (session TEXT, node INTEGER, step INTEGER, version INTEGER, data BLOB, "
    "PRIMARY KEY (session, node, step))"
)
_INDEX = "CREATE INDEX IF NOT EXISTS logprobs_by_step ON logprobs (step)"
"""Each step's rows are digested, and of a whole run they are gigabytes."""


@dataclass(frozen=True, slots=True)
class TurnLogprobs:
    """The trainer's log-probabilities of a turn's tokens.

    Attributes:
        step: that trained on it, from 1.
        version: of the weights, those before the step.
        logprobs: one for each token of the node, in nats, at the temperature that it was sampled at; 0 where a token
            can't be trained.
    """

    step: int
    version: int
    logprobs: list[float]


def write(run: Path, step: int, version: int, found: Mapping[tuple[str, int], Sequence[float]]) -> None:
    """Add a step's log-probabilities.

    Args:
        run: the run's folder.
        step: from 1.
        version: of the weights that computed them.
        found: one for each token of a node, by session (as credit counts it, `Session.by_agent`) and node.
    """
    formats.check_database(run / NAME, formats.LOGPROBS)
    rows = [
        (session, node, step, version, pack_numbers(FLOATS, logprobs)) for (session, node), logprobs in found.items()
    ]
    try:
        with closing(sqlite3.connect(run / NAME, WAIT)) as db, db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(_TABLE)
            db.execute(_INDEX)
            formats.mark_database(db, formats.LOGPROBS)
            db.executemany("INSERT OR REPLACE INTO logprobs VALUES (?, ?, ?, ?, ?)", rows)
    except sqlite3.Error as error:
        raise StoreError(f"{run / NAME}: {error}") from error


def last_of(run: Path, session: str, node: int) -> TurnLogprobs | None:
    """The newest record of a turn; None where there is none, as in a run without `record_logprobs`.

    `session` is the id under which credit counts it (`Session.by_agent`), and `node` the turn's there.
    """
    select = "SELECT step, version, data FROM logprobs WHERE session = ? AND node = ? ORDER BY step DESC LIMIT 1"
    for number, version, data in _select(run, select, session, node):
        return TurnLogprobs(number, version, unpack_numbers(FLOATS, data).tolist())
    return None


def digest(run: Path, step: int) -> str:
    """A digest of a step's rows, 32 hexadecimal digits; '' where it has none."""
    found = hashlib.blake2b(digest_size=16)
    rows = _select(run, "SELECT session, node, version, data FROM logprobs WHERE step = ? ORDER BY session, node", step)
    for session, node, version, data in rows:
        found.update(orjson.dumps((session, node, version, len(data))) + data)
    return found.hexdigest() if rows else ""


def _select(run: Path, select: str, *values: object) -> list[Any]:
    """The rows of a query; none where the run has no such file."""
    if not (run / NAME).is_file():
        return []
    formats.check_database(run / NAME, formats.LOGPROBS)
    try:
        with closing(formats.connect_to_read(run / NAME, WAIT)) as db:
            return db.execute(select, values).fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{run / NAME}: {error}") from error


def drop_after(run: Path, step: int) -> None:
    """Remove the rows of steps after `step`, which a resumed run will write again."""
    if (run / NAME).is_file():
        formats.check_database(run / NAME, formats.LOGPROBS)
        with closing(sqlite3.connect(run / NAME, WAIT)) as db, db:
            db.execute(_TABLE)
            db.execute("DELETE FROM logprobs WHERE step > ?", (step,))

"""The tables of a session store, and whether a file is one.

A session is a row of `sessions` (`head` is its JSON, see `codec`), one of `tasks`, one of `summaries` (`summary`), and
one of `nodes` for each node; attachments are in `blobs`, equal ones once; `calls` names the tools that each session
called; `states` has what an unfinished session can be continued from. Nodes are appended in the order of their commits;
an index of two integers finds those of a session. Stored tokens are final: triggers reject changes to them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.common import formats
from agentrl.errors import StoreError
from agentrl.sessions.store import summary
from agentrl.sessions.store.integrity import checksum
from agentrl.sessions.tree.codec import NODE_COLUMNS, digest, head_json, node_from, session_from
from agentrl.types import Session

OLDEST = 7
"""The first format that can be read: that of the first agentrl whose runs later ones read."""

ROW_COLUMNS = f"{NODE_COLUMNS}, checksum"
HEAD_COLUMNS = "id, group_id, status, head, nodes, checksum"
PUT_TASK = (  # it hardly ever changes, and a row that is not written costs no page of the log
    "INSERT INTO tasks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET task = excluded.task, checksum = excluded.checksum "
    "WHERE checksum != excluded.checksum OR task != excluded.task"
)

_SCHEMA = """
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL, group_id TEXT NOT NULL, status TEXT NOT NULL, head TEXT NOT NULL,
    nodes INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX sessions_by_id ON sessions (id);
CREATE TABLE tasks (session INTEGER PRIMARY KEY, task TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE nodes (
    session INTEGER NOT NULL, id INTEGER NOT NULL, parent INTEGER, agent TEXT NOT NULL, reply_id TEXT,
    message TEXT NOT NULL, token_ids BLOB NOT NULL, logprobs BLOB, trained_from INTEGER NOT NULL,
    reward REAL, turn TEXT, tools TEXT, attachments TEXT, checksum INTEGER NOT NULL, PRIMARY KEY (session, id)
);
CREATE TRIGGER tokens_are_final BEFORE UPDATE OF
    session, id, parent, message, token_ids, logprobs, trained_from, turn, tools, attachments ON nodes
BEGIN SELECT RAISE(ABORT, 'stored tokens are never rewritten'); END;
CREATE TABLE blobs (digest TEXT PRIMARY KEY, data BLOB NOT NULL, uses INTEGER NOT NULL DEFAULT 0);
CREATE TRIGGER blobs_are_final BEFORE UPDATE OF digest, data ON blobs
BEGIN SELECT RAISE(ABORT, 'stored attachments are never rewritten'); END;
CREATE TRIGGER blobs_used AFTER INSERT ON nodes WHEN new.attachments IS NOT NULL BEGIN
    UPDATE blobs SET uses = uses + 1 WHERE digest IN (SELECT value FROM json_each(new.attachments));
END;
CREATE TRIGGER blobs_unused AFTER DELETE ON nodes WHEN old.attachments IS NOT NULL BEGIN
    UPDATE blobs SET uses = uses - 1 WHERE digest IN (SELECT value FROM json_each(old.attachments));
    DELETE FROM blobs WHERE uses < 1 AND digest IN (SELECT value FROM json_each(old.attachments));
END;
CREATE TABLE states (session INTEGER PRIMARY KEY, state BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE totals (commits INTEGER NOT NULL, sessions INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER session_added AFTER INSERT ON sessions BEGIN
    UPDATE totals SET sessions = sessions + 1;
END;
CREATE TRIGGER session_removed AFTER DELETE ON sessions BEGIN
    DELETE FROM nodes WHERE session = old.key;
    DELETE FROM tasks WHERE session = old.key;
    DELETE FROM states WHERE session = old.key;
    DELETE FROM summaries WHERE session = old.key;
    UPDATE totals SET sessions = sessions - 1;
END;
"""

_CALLS = """
CREATE TABLE IF NOT EXISTS calls (session INTEGER, tool TEXT, PRIMARY KEY (session, tool)) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS calls_added AFTER INSERT ON nodes WHEN instr(new.message, '"tool_calls"') BEGIN
    INSERT OR IGNORE INTO calls SELECT new.session, substr(json_extract(value, '$.function.name'), 1, 100)
    FROM json_each(new.message, '$.tool_calls');
END;
CREATE TRIGGER IF NOT EXISTS calls_removed AFTER DELETE ON sessions BEGIN
    DELETE FROM calls WHERE session = old.key;
END;
INSERT OR IGNORE INTO calls SELECT session, substr(json_extract(value, '$.function.name'), 1, 100)
FROM nodes, json_each(message, '$.tool_calls') WHERE instr(message, '"tool_calls"');
"""


_BLOBS = (
    "SELECT digest, data FROM blobs WHERE digest IN "
    "(SELECT value FROM nodes, json_each(nodes.attachments) WHERE session = ? AND attachments IS NOT NULL)"
)


def create(db: sqlite3.Connection) -> None:
    """Create the tables, in the transaction that is open."""
    for statement in _statements(_SCHEMA + summary.SCHEMA):
        db.execute(statement)
    add_calls(db)
    formats.mark_database(db, formats.STORE)


def is_older(db: sqlite3.Connection) -> bool:
    """Return whether what is about to be written could be misread by the agentrl that made the file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0]) < formats.STORE.number or not has_calls(db)


def renew(db: sqlite3.Connection) -> None:
    """Give an older file what is written today, in the transaction that is open."""
    if not has_calls(db):
        add_calls(db)
    formats.mark_database(db, formats.STORE)


def has_calls(db: sqlite3.Connection) -> bool:
    """Return whether the file says which tools were called; older ones of the same version don't."""
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchone())


def add_calls(db: sqlite3.Connection) -> None:
    """Add `calls`, filled from the nodes that are there, in the transaction that is open."""
    for statement in _statements(_CALLS):
        db.execute(statement)


def exists(db: sqlite3.Connection, path: str) -> bool:
    """Return whether the file has the tables; False for an empty one.

    Raises:
        StoreError: it was written before formats were kept readable, or is another kind of database.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if 0 < version < OLDEST:
        raise StoreError(f"{path!r} has format {version}, of an older agentrl; this one reads formats from {OLDEST} on")
    if version == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise StoreError(f"{path!r} is an SQLite file, but no session store")
    return version > 0


def failure(path: str, error: Exception) -> StoreError:
    """Return the error for a store that could not be used."""
    if "no such table: calls" in str(error):
        return StoreError(f"{path!r} was written before stores kept which tools were called; --grep finds their names")
    mend = "; make room on that disk, and give the command again" if "disk is full" in str(error) else ""
    if "malformed" in str(error):
        mend = "; `agentrl sessions RUN --salvage NEW.db` writes what of it is whole into a new store"
    if "unable to open" in str(error) and Path(f"{path}-wal").exists():
        mend = "; the end of it is in its log (-wal), which is read where its folder can be written: copy both there"
    return StoreError(f"session store {path!r}: {error}{mend}")


def head_row(session: Session, nodes: int) -> tuple[Any, ...]:
    """The values of `HEAD_COLUMNS` for a session of which `nodes` are stored."""
    row = session.id, session.group, session.status.value, head_json(session), nodes
    return *row, checksum(row)


def read_session(db: sqlite3.Connection, key: int) -> Session | None:
    """A session, with each row's checksum checked; None if there is none.

    Raises:
        StoreError: it is not what was written.
        sqlite3.Error: reading failed.
    """
    head = db.execute(f"SELECT {HEAD_COLUMNS} FROM sessions WHERE key = ?", (key,)).fetchone()
    if head is None:
        return None
    id_, group, status, text, count, _ = head
    if checksum(head[:-1]) != head[-1]:
        raise _report_damage(id_, "its head does not match its checksum")
    task = db.execute("SELECT task, checksum FROM tasks WHERE session = ?", (key,)).fetchone()
    if task is None or checksum((id_, task[0])) != task[1]:
        raise _report_damage(id_, "its task does not match its checksum")
    nodes = f"SELECT {ROW_COLUMNS} FROM nodes WHERE session = ? ORDER BY id"
    rows = db.execute(nodes, (key,)).fetchall()
    for row in rows:
        if checksum((id_, *row[:-1])) != row[-1]:
            raise _report_damage(id_, f"node {row[0]} does not match its checksum")
    if count != len(rows):
        raise _report_damage(id_, f"{len(rows)} nodes are stored, and {count} were written")
    blobs = dict(db.execute(_BLOBS, (key,)).fetchall())
    for name, data in blobs.items():
        if digest(data) != name:
            raise _report_damage(id_, f"the attachment {name} does not match its digest")
    return session_from(id_, group, status, task[0], text, [node_from(row[:-1], blobs) for row in rows])


def _report_damage(session_id: str, what: str) -> StoreError:
    return StoreError(f"session {session_id!r} is not as it was written: {what} (see agentrl sessions --check)")


def _statements(script: str) -> Iterator[str]:
    """The script's statements; `executescript` would end the open transaction."""
    statement = ""
    for piece in script.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""

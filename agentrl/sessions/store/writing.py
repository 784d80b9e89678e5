"""Writes sessions' rows, those of many sessions with the same statements, within the transaction that is open.

A statement costs the thread switches of each of its steps, and the tables' and indexes' pages anew: so what a commit
writes is one statement for each table, however many sessions it is of. What this process knows of the open sessions
that it writes (`_Known`) is not read from the file again.
"""

from __future__ import annotations

import functools
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentrl.errors import StoreError
from agentrl.sessions.store import summary
from agentrl.sessions.store.integrity import checksum
from agentrl.sessions.store.schema import HEAD_COLUMNS, PUT_TASK, ROW_COLUMNS, head_row
from agentrl.sessions.store.summary import Totals
from agentrl.sessions.tree.codec import NODE_COLUMNS, digest, files, head_json, node_row, pack_ids, task_json
from agentrl.sessions.tree.incarnations import Loss, mark
from agentrl.types import Node, Session, Status

UNFINISHED = (Status.OPEN, Status.ABORTED)
"""Statuses of sessions that keep their episode's state."""
_REWARD, _TOKENS = map(NODE_COLUMNS.split(", ").index, ("reward", "token_ids"))
_AMONG = "IN (SELECT value FROM json_each(?))"
_HEAD = "group_id, status, head, nodes, checksum"
_PROGRESS = ", ".join(summary.PROGRESS)
_ENDING = ", ".join(f'"{name}"' for name in summary.COLUMNS[len(summary.BEGINNING) :])
Row = tuple[Any, ...]
MOST_ROWS = 256
"""Rows of one statement: 256 of the widest table are far from SQLite's limit of 32,766 values."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A session to write, with what `Store.save` is told of it."""

    session: Session
    replace: bool = False
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class SessionGrowth:
    """New nodes of a session and its head as it is now; the session itself may go on while this waits to be written.

    Attributes:
        session: the live one.
        nodes: its new nodes.
        first: the id that the first of them has, or would have.
        head: the first values of its row (`schema.HEAD_COLUMNS`).
        calls: tool calls, and those that failed.
        state: of its episode; None leaves the one that is stored.
    """

    session: Session
    nodes: Sequence[Node]
    first: int
    head: tuple[str, str, str, str]
    calls: tuple[int, int]
    state: bytes | None = None

    @classmethod
    def of(cls, session: Session, nodes: Sequence[Node], state: bytes | None = None) -> SessionGrowth:
        """The addition of these nodes to a session as it is now.

        Raises:
            InvalidInput: the session holds what JSON can't express.
        """
        first = nodes[0].id if nodes else len(session.nodes)
        head = session.id, session.group, session.status.value, head_json(session)
        return cls(session, nodes, first, head, summary.tool_calls(session), state)


@dataclass(slots=True)
class _Known:
    """A stored session that is open, and that this process has written: its key, and what its rows have.

    Attributes:
        tokens: a CRC of its nodes' token ids.
        task: the checksum of its task.
        beginning: the values of `summary.BEGINNING`.
    """

    key: int
    totals: Totals = field(default_factory=Totals)
    rewards: list[float | None] = field(default_factory=list)
    tokens: int = 0
    task: int | None = None
    beginning: tuple[Any, ...] = ()

    def has_tokens_of(self, session: Session) -> bool:
        """Return whether the session's first nodes have the tokens that are stored."""
        crc = 0
        for node in session.nodes[: self.totals.nodes]:
            crc = zlib.crc32(pack_ids(node.token_ids), crc)
        return len(session.nodes) >= self.totals.nodes and crc == self.tokens


class SessionWriter:
    """Writes to a connection; whoever calls it has begun a transaction, and calls `forget` where that is rolled back.

    Args:
        db: the connection.
        path: its file, for messages.
    """

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db, self._path = db, path
        self._open: dict[str, _Known] = {}
        self.losses: Sequence[Loss] = ()

    def forget(self) -> None:
        """Forget what was written last: it may not be stored."""
        self._open.clear()

    def delete(self, session_id: str) -> None:
        """Delete a session; does nothing if there is none."""
        self._open.pop(session_id, None)
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def delete_attempts(self, sessions: Sequence[Session]) -> None:
        """Delete what is stored of these sessions' attempts, and of later ones at the same samples."""
        groups = orjson.dumps(list({one.group for one in sessions if one.group})).decode()
        find = f'SELECT "group", sample, phase, attempt, id FROM summaries WHERE "group" {_AMONG}'
        stored: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
        for *same, attempt, id_ in self._db.execute(find, (groups,)).fetchall():
            stored.setdefault(tuple(same), []).append((attempt, id_))
        for one in sessions:
            for attempt, id_ in stored.get((one.group, one.sample, one.phase), ()):
                if attempt >= one.attempt:
                    self.delete(id_)

    def save(self, savings: Sequence[Saving]) -> None:
        """Write whole sessions, of different ids; see `Store.save`."""
        found = self._find([one.session.id for one in savings])
        for one in savings:
            if one.replace and found.pop(one.session.id, None) is not None:
                self.delete(one.session.id)
        self._begin([one.session for one in savings if one.session.id not in found])
        old = [one.session for one in savings if one.session.id in found]
        known = [self._know(session, *found[session.id]) for session in old]
        self._put_heads(
            {one.key: head_row(session, len(session.nodes)) for one, session in zip(known, old, strict=True)}
        )
        self._add_nodes([(one, s, s.nodes[one.totals.nodes :]) for one, s in zip(known, old, strict=True)])
        self._put_summaries(known, old)
        self._end(savings)

    def _begin(self, new: Sequence[Session]) -> None:
        """Insert sessions that are not stored."""
        if not new:
            return
        last = self._db.execute("SELECT max(key) FROM sessions").fetchone()[0] or 0
        known = [_Known(key) for key in range(last + 1, last + 1 + len(new))]
        pairs = list(zip(known, new, strict=True))
        heads = [(one.key, *head_row(session, len(session.nodes))) for one, session in pairs]
        insert_rows(self._db, "sessions", f"key, {HEAD_COLUMNS}", heads)
        tasks = [(one.key, *_task(session)) for one, session in pairs]
        insert_rows(self._db, "tasks", "session, task, checksum", tasks, replace=True)
        self._add_nodes([(one, session, session.nodes) for one, session in pairs])
        rows = [(one.key, *summary.values(session, one.totals)) for one, session in pairs]
        insert_rows(self._db, "summaries", f"session, {summary.SELECTED}", rows, replace=True)
        for (one, session), task, row in zip(pairs, tasks, rows, strict=True):
            one.task, one.beginning = task[-1], row[1 : 1 + len(summary.BEGINNING)]
            self._open[session.id] = one

    def _put_summaries(self, known: Sequence[_Known], sessions: Sequence[Session]) -> None:
        """Write tasks and summaries of stored sessions where they changed: what a session begins with hardly does."""
        ends, wholes = [], []
        for one, session in zip(known, sessions, strict=True):
            task = _task(session)
            if one.task != task[1]:
                self._db.execute(PUT_TASK, (one.key, *task))
                one.task = task[1]
            row = summary.values(session, one.totals)
            beginning = row[: len(summary.BEGINNING)]
            if one.beginning == beginning:
                ends.append((one.key, *row[len(beginning) :]))
            else:
                wholes.append((one.key, *row))
                one.beginning = beginning
        update_rows(self._db, "summaries", "session", _ENDING, ends)
        insert_rows(self._db, "summaries", f"session, {summary.SELECTED}", wholes, replace=True)

    def _end(self, savings: Iterable[Saving]) -> None:
        """Write the states of unfinished episodes, and delete those of sessions that have ended."""
        ended: list[int] = []
        states: dict[int, tuple[str, bytes]] = {}
        for one in savings:
            id_, status = one.session.id, one.session.status
            key = self._open[id_].key
            if status not in UNFINISHED:
                ended.append(key)
            elif one.state is not None:
                states[key] = id_, one.state
            if status is not Status.OPEN:
                del self._open[id_]
        if ended:
            self._db.execute(f"DELETE FROM states WHERE session {_AMONG}", (orjson.dumps(ended).decode(),))
        self._put_states(states)

    def append(self, additions: Iterable[SessionGrowth]) -> None:
        """Add to stored sessions, to one perhaps several times in order."""
        newest: dict[int, tuple[SessionGrowth, Totals]] = {}
        new: list[tuple[_Known, Session, Sequence[Node]]] = []
        states: dict[int, tuple[str, bytes]] = {}
        ends: dict[int, int] = {}
        for one in additions:
            known = self._open.get(one.session.id)
            if known is None or one.first != ends.get(known.key, known.totals.nodes):
                known = self._find_followed(one)
            ends[known.key] = one.first + len(one.nodes)
            new.append((known, one.session, one.nodes))
            newest[known.key] = one, known.totals
            if one.state is not None:
                states[known.key] = one.session.id, one.state
        self._add_nodes(new)
        heads = {key: (*one.head, totals.nodes) for key, (one, totals) in newest.items()}
        self._put_heads({key: (*head, checksum(head)) for key, head in heads.items()})
        progress = [(key, *summary.progress(totals, one.calls)) for key, (one, totals) in newest.items()]
        update_rows(self._db, "summaries", "session", _PROGRESS, progress)
        self._put_states(states)

    def _find_followed(self, addition: SessionGrowth) -> _Known:
        """A stored session that an addition goes on from."""
        session = addition.session
        row = self._db.execute("SELECT key, nodes FROM sessions WHERE id = ?", (session.id,)).fetchone()
        if row is None:
            raise StoreError(f"session {session.id!r} is not in the store {self._path!r}: save it first")
        if addition.first != row[1]:
            raise StoreError(
                f"session {session.id!r} is stored with {row[1]} nodes; node {addition.first} can't follow"
            )
        known = self._open[session.id] = _Known(row[0])
        for node in session.nodes[: row[1]]:
            _note(known, node, pack_ids(node.token_ids))
        return known

    def _find(self, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Keys and numbers of nodes of those of these sessions that are stored, by their ids."""
        found = f"SELECT id, key, nodes FROM sessions WHERE id {_AMONG}"
        return {row[0]: (row[1], row[2]) for row in self._db.execute(found, (orjson.dumps(ids).decode(),))}

    def _know(self, session: Session, key: int, nodes: int) -> _Known:
        """Return what is stored of a session that has the stored tokens; write new rewards of stored nodes."""
        known = self._open.get(session.id)
        if known is None or (known.key, known.totals.nodes) != (key, nodes) or not known.has_tokens_of(session):
            known = self._open[session.id] = self._compare_nodes(session, key)
        for place, (node, reward) in enumerate(zip(session.nodes, known.rewards, strict=False)):
            if reward != node.reward:
                row = node_row(node)
                values = (row[_REWARD], checksum((session.id, *row)), key, node.id)
                self._db.execute("UPDATE nodes SET reward = ?, checksum = ? WHERE session = ? AND id = ?", values)
                known.rewards[place] = node.reward
        return known

    def _compare_nodes(self, session: Session, key: int) -> _Known:
        """Read a session's stored nodes, and compare their tokens with its own."""
        found = "SELECT id, token_ids, reward FROM nodes WHERE session = ? ORDER BY id"
        stored = self._db.execute(found, (key,)).fetchall()
        if len(stored) > len(session.nodes):
            count = len(session.nodes)
            raise StoreError(f"session {session.id!r} is stored with {len(stored)} nodes, and now has {count}")
        known = _Known(key)
        for node, (id_, token_ids, reward) in zip(session.nodes, stored, strict=False):
            if id_ != node.id or token_ids != pack_ids(node.token_ids):
                raise StoreError(f"session {session.id!r}: node {node.id} is stored with other tokens")
            _note(known, node, token_ids)
            known.rewards[-1] = reward
        return known

    def _add_nodes(self, additions: Sequence[tuple[_Known, Session, Sequence[Node]]]) -> None:
        """Insert new nodes of sessions."""
        rows: list[tuple[Any, ...]] = []
        blobs: list[tuple[str, bytes]] = []
        for known, session, nodes in additions:
            mark(nodes, self.losses)
            for node in nodes:
                data = files(node)
                blobs += [(digest(each), each) for each in data.values()]
                row = node_row(node, data)
                rows.append((known.key, *row, checksum((session.id, *row))))
                _note(known, node, row[_TOKENS])
                known.rewards[-1] = row[_REWARD]
        if blobs:
            self._db.executemany("INSERT OR IGNORE INTO blobs (digest, data) VALUES (?, ?)", blobs)
        insert_rows(self._db, "nodes", f"session, {ROW_COLUMNS}", rows)

    def _put_heads(self, rows: Mapping[int, tuple[Any, ...]]) -> None:
        """Rewrite heads, by their sessions' keys."""
        new = [(key, *row[1:]) for key, row in rows.items()]
        if update_rows(self._db, "sessions", "key", _HEAD, new) < len(new):
            there = {row[0] for row in self._db.execute("SELECT id FROM sessions")}
            gone = next(row[0] for row in rows.values() if row[0] not in there)
            raise StoreError(f"session {gone!r} was removed from the store {self._path!r} by another writer")

    def _put_states(self, states: Mapping[int, tuple[str, bytes]]) -> None:
        """Write states of episodes, each with its session's id, by the sessions' keys."""
        rows = [(key, state, checksum((session_id, state))) for key, (session_id, state) in states.items()]
        insert_rows(self._db, "states", "session, state, checksum", rows, replace=True)


def _note(known: _Known, node: Node, token_ids: bytes) -> None:
    """Note that a session's next node is stored."""
    known.totals.add(node)
    known.tokens = zlib.crc32(token_ids, known.tokens)
    known.rewards.append(node.reward)


def _task(session: Session) -> tuple[str, int]:
    """A session's task as it is stored, and its checksum."""
    task = task_json(session)
    return task, checksum((session.id, task))


def insert_rows(
    db: sqlite3.Connection, table: str, columns: str, rows: Sequence[Row], *, replace: bool = False
) -> None:
    """Insert rows of the values of `columns` (names, separated by commas); `replace`: in place of older ones."""
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    for part in _batches(rows):
        db.execute(_insertion(verb, table, columns, len(part)), _flatten(part))


def update_rows(db: sqlite3.Connection, table: str, key: str, columns: str, rows: Sequence[Row]) -> int:
    """Write the values of `columns` in the rows that have a key; each of `rows` is a key and these values.

    Returns:
        The rows that there were.
    """
    return sum(db.execute(_update(table, key, columns, len(part)), _flatten(part)).rowcount for part in _batches(rows))


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in parts whose lengths are powers of two, so that few different statements are prepared."""
    at = 0
    while at < len(rows):
        count = min(MOST_ROWS, 1 << (len(rows) - at).bit_length() - 1)
        yield rows[at : at + count]
        at += count


def _flatten(rows: Sequence[Row]) -> list[Any]:
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

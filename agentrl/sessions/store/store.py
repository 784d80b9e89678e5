"""The session store: one SQLite file, in WAL mode, that is written while the run generates.

Commits are atomic, so a process that is killed loses at most the record that it was writing, and opening the file
again is all the recovery that is needed. Damage to the file is detected (`integrity`), and `agentrl sessions --check`
saves what is undamaged (`salvage`). `synchronous=NORMAL` leaves out a flush to the disk for each commit: a power cut
may lose the last turns (never the file), and a turn costs some tenths of a millisecond. Other processes can read while
one writes; lists of sessions are read from one short row per session (`summary`, `query`).
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentrl import faults
from agentrl.common import formats
from agentrl.errors import AgentRLError, InvalidInput, StoreError
from agentrl.sessions.store import digests, edited, integrity, many_rows, query, schema, summary
from agentrl.sessions.store.integrity import CountFile, Counts, checksum
from agentrl.sessions.store.query import Filters, SessionPage
from agentrl.sessions.store.schema import HEAD_COLUMNS, PUT_TASK, ROW_COLUMNS, head_row, read_session
from agentrl.sessions.store.summary import Totals
from agentrl.sessions.tree.codec import NODE_COLUMNS, digest, files, node_row, pack_ids, task_json
from agentrl.sessions.tree.incarnations import Loss, mark
from agentrl.types import Node, Session, Status

logger = logging.getLogger(__name__)
UNFINISHED = (Status.OPEN, Status.ABORTED)
"""Statuses of sessions that keep their episode's state."""
REWARD = NODE_COLUMNS.split(", ").index("reward")


class Store:
    """Sessions in a file; safe for several threads, and for several processes, of which one writes at a time.

    Args:
        path: the SQLite file; created if absent. ":memory:" stores nothing on disk.
        timeout: seconds to wait for another process's write.
        read_only: open an existing store, which another process may be writing, without changing it.

    Attributes:
        losses: how new turns' incarnations follow from their versions (`sessions.tree.incarnations`); also in memory.
        cache_kib: pages cached by a writer: with SQLite's 2 MiB, thousands of sessions' turns mostly read theirs again.

    Raises:
        NewerFormat: a later agentrl wrote it; nothing was changed.
        StoreError: the file can't be opened, or is no session store.
    """

    cache_kib = 32 * 1024

    def __init__(self, path: str | Path, timeout: float = 30.0, *, read_only: bool = False) -> None:
        self.path = str(path)
        formats.check_database(self.path, formats.STORE)
        self._lock = threading.RLock()
        self._count = CountFile(self.path)
        self._read_only = read_only
        self._open_totals: dict[str, tuple[int, Totals]] = {}
        self.losses: Sequence[Loss] = ()
        name = f"file:{quote(self.path)}?mode=ro" if read_only else self.path
        if not read_only and self.path != ":memory:":
            integrity.make_private(self.path)
        try:
            self._db = sqlite3.connect(name, timeout, isolation_level=None, check_same_thread=False, uri=read_only)
        except sqlite3.Error as error:
            raise StoreError(f"can't open the session store {self.path!r}: {error}") from error
        with self._errors():
            if read_only:
                if not schema.exists(self._db, self.path):
                    raise StoreError(f"{self.path!r} is empty: it is no session store")
                return
            for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"cache_size=-{self.cache_kib}"):
                self._db.execute(f"PRAGMA {pragma}")
            if not schema.exists(self._db, self.path):
                with self._transaction(count=False):
                    if not schema.exists(self._db, self.path):  # else another process has created them
                        schema.create(self._db)
            elif schema.is_older(self._db):
                with self._transaction(count=False):
                    schema.renew(self._db)
        self._compare()

    def save(self, session: Session, *, replace: bool = False, state: bytes | None = None) -> None:
        """Write a session: its head, and the nodes and step rewards that are not stored yet.

        Args:
            session: what to write.
            replace: delete a session stored under the same id first (a resumed run generates it again).
            state: of its episode, where it is unfinished; None leaves the one that is stored. A session that has ended
                keeps none.

        Raises:
            StoreError: writing failed, or other tokens are stored under the same node.
            InvalidInput: the session holds what JSON can't express.
        """
        with self._transaction():
            if replace:
                self._delete(session.id)
            find = "SELECT key FROM sessions WHERE id = ?"
            found = None if replace else self._db.execute(find, (session.id,)).fetchone()
            head = head_row(session, len(session.nodes))
            if found is None:
                insert = f"INSERT INTO sessions ({HEAD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
                key, stored = int(self._db.execute(insert, head).lastrowid or 0), 0
            else:
                key, stored = found[0], self._compare_nodes(found[0], session)
                self._put_heads({key: head})
            self._put_nodes([(key, session, session.nodes[stored:])])
            totals = Totals.of(session.nodes)
            task = task_json(session)
            self._db.execute(PUT_TASK, (key, task, checksum((session.id, task))))
            marks = ", ?" * len(summary.COLUMNS)
            self._db.execute(
                f"INSERT OR REPLACE INTO summaries (session, {summary.SELECTED}) VALUES (?{marks})",
                (key, *summary.values(session, totals)),
            )
            self._open_totals.pop(session.id, None)
            if session.status is Status.OPEN:
                self._open_totals[session.id] = key, totals
            if session.status not in UNFINISHED:
                self._db.execute("DELETE FROM states WHERE session = ?", (key,))
            elif state is not None:
                self._put_states({key: (session.id, state)})

    def append(self, session: Session, nodes: Sequence[Node], state: bytes | None = None) -> None:
        """Add new nodes to a session that was saved before and rewrite its head, atomically.

        `state` takes the place of the episode's state that is stored; None leaves it.

        Raises:
            StoreError: writing failed, the session is not stored, or the nodes are not its next ones.
            InvalidInput: the session holds what JSON can't express.
        """
        self.append_all([(session, nodes, state)])

    def append_all(self, additions: Iterable[tuple[Session, Sequence[Node], bytes | None]]) -> None:
        """Add to several sessions, atomically: each addition has the arguments of `append`."""
        with self._transaction():
            changed: dict[int, tuple[Session, Totals]] = {}
            new: list[tuple[int, Session, Sequence[Node]]] = []
            states: dict[int, tuple[str, bytes]] = {}
            for session, nodes, state in additions:
                key, totals = self._find_known(session, nodes)
                for node in nodes:
                    totals.add(node)
                new.append((key, session, nodes))
                changed[key] = session, totals
                if state is not None:
                    states[key] = session.id, state
            self._put_nodes(new)
            self._put_heads({key: head_row(session, totals.nodes) for key, (session, totals) in changed.items()})
            progress = [(key, *summary.progress(session, totals)) for key, (session, totals) in changed.items()]
            many_rows.update(self._db, "summaries", "session", _PROGRESS, progress)
            self._put_states(states)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Everything that is written in the block is one commit."""
        with self._transaction():
            yield

    def delete(self, session_id: str) -> None:
        """Delete a session; does nothing if there is none."""
        with self._transaction():
            self._delete(session_id)

    # -------------------------------------------------------------------------------------- reading

    def load(self, session_id: str) -> Session:
        """The session of that id.

        Raises:
            InvalidInput: there is none.
            StoreError: reading failed, or the file was damaged since it was written.
        """
        with self._lock, self._errors(), self._snapshot():
            key = self._db.execute("SELECT key FROM sessions WHERE id = ?", (session_id,)).fetchone()
            found = key and read_session(self._db, key[0])
        if not found:
            raise InvalidInput(f"session_id={session_id!r} is not in the store {self.path!r}")
        return found

    def state(self, session_id: str) -> bytes | None:
        """The newest state of an unfinished session's episode; None where none is stored.

        Raises:
            StoreError: reading failed, or the file was damaged since it was written.
        """
        select = "SELECT state, states.checksum FROM states JOIN sessions ON key = session WHERE id = ?"
        with self._lock, self._errors():
            row = self._db.execute(select, (session_id,)).fetchone()
        if row is not None and checksum((session_id, row[0])) != row[1]:
            raise StoreError(f"session {session_id!r}: the state of its episode does not match its checksum")
        return None if row is None else bytes(row[0])

    def ids(self, **filters: Any) -> list[str]:
        """The ids of the sessions that fit every filter (see `query.Filters`), in order."""
        where, values = query.condition({name: value for name, value in filters.items() if value is not None})
        with self._querying():
            return [row[0] for row in self._db.execute(f"SELECT id FROM summaries WHERE {where} ORDER BY id", values)]

    def sessions(self, **filters: Any) -> Iterator[Session]:
        """The sessions that fit every filter (see `query.Filters`), one at a time: never all of them in memory."""
        for session_id in self.ids(**filters):
            yield self.load(session_id)

    def digests(self, **filters: Any) -> dict[str, str]:
        """Digests (`sessions.store.digests`) of the sessions that fit every filter, by id, in order."""
        with self._querying(), self._snapshot():
            return digests.read_all(self._db, *query.condition(filters))

    def find(
        self,
        filters: Filters | None = None,
        *,
        sort: str | None = None,
        descending: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> SessionPage:
        """A page of summaries; no session is read.

        Args:
            filters: what to find; see `query.Filters`.
            sort: a column, or reward/NAME; sessions without a value come last. None sorts by when they began.
            descending: from the largest value to the smallest.
            limit: the longest page, up to 100,000 rows.
            after: `SessionPage.next` of the page before this one; the other arguments must be the same.

        Raises:
            UnknownName: there is no such column.
            InvalidInput: `limit` is out of range, or `after` did not come from a page.
        """
        with self._querying():
            return query.find(self._db, filters or {}, sort, descending, limit, after)

    def counts(self, by: str = "status", filters: Filters | None = None) -> dict[Any, int]:
        """Return the number of sessions that fit the filters, for each value of the column `by`.

        Raises:
            UnknownName: there is no such column.
        """
        with self._querying():
            return query.counts(self._db, filters or {}, by)

    def mean_scores(self, by: str, filters: Filters | None = None) -> dict[Any, tuple[float, int]]:
        """The mean score, and of how many sessions, for each value of the column `by`; see `counts`.

        Raises:
            UnknownName: there is no such column.
        """
        with self._querying():
            return query.mean_scores(self._db, filters or {}, by)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            self._db.close()
            self._count.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- internals

    def _find_known(self, session: Session, nodes: Sequence[Node]) -> tuple[int, Totals]:
        """A stored session's key and the sums over its stored nodes, which `nodes` go on from."""
        first = nodes[0].id if nodes else len(session.nodes)
        known = self._open_totals.get(session.id)
        if known is None or first != known[1].nodes:
            row = self._db.execute("SELECT key, nodes FROM sessions WHERE id = ?", (session.id,)).fetchone()
            if row is None:
                raise StoreError(f"session {session.id!r} is not in the store {self.path!r}: save it first")
            if first != row[1]:
                raise StoreError(f"session {session.id!r} is stored with {row[1]} nodes; node {first} can't follow")
            known = self._open_totals[session.id] = row[0], Totals.of(session.nodes[: row[1]])
        return known

    def _compare_nodes(self, key: int, session: Session) -> int:
        """Compare a session's nodes with those that are stored, and write new rewards; how many are stored."""
        found = "SELECT id, token_ids, reward FROM nodes WHERE session = ? ORDER BY id"
        stored = self._db.execute(found, (key,)).fetchall()
        if len(stored) > len(session.nodes):
            count = len(session.nodes)
            raise StoreError(f"session {session.id!r} is stored with {len(stored)} nodes, and now has {count}")
        for node, (id_, token_ids, reward) in zip(session.nodes, stored, strict=False):
            if id_ != node.id or token_ids != pack_ids(node.token_ids):
                raise StoreError(f"session {session.id!r}: node {node.id} is stored with other tokens")
            if reward != node.reward:
                row = node_row(node)
                values = (row[REWARD], checksum((session.id, *row)), key, node.id)
                self._db.execute("UPDATE nodes SET reward = ?, checksum = ? WHERE session = ? AND id = ?", values)
        return len(stored)

    def _put_heads(self, rows: Mapping[int, tuple[Any, ...]]) -> None:
        """Rewrite heads, by their sessions' keys."""
        new = [(key, *row[1:]) for key, row in rows.items()]
        if many_rows.update(self._db, "sessions", "key", _HEAD, new) < len(new):
            there = {row[0] for row in self._db.execute("SELECT id FROM sessions")}
            gone = next(row[0] for row in rows.values() if row[0] not in there)
            raise StoreError(f"session {gone!r} was removed from the store {self.path!r} by another writer")

    def _put_nodes(self, additions: Sequence[tuple[int, Session, Sequence[Node]]]) -> None:
        """Insert new nodes: each addition is a session's key, the session, and its nodes."""
        rows: list[tuple[Any, ...]] = []
        blobs: list[tuple[str, bytes]] = []
        for key, session, nodes in additions:
            mark(nodes, self.losses)
            blobs += [(digest(data), data) for node in nodes for data in files(node).values()]
            rows += [(key, *row, checksum((session.id, *row))) for row in map(node_row, nodes)]
        if blobs:
            self._db.executemany("INSERT OR IGNORE INTO blobs (digest, data) VALUES (?, ?)", blobs)
        many_rows.insert(self._db, "nodes", _NODE, rows)

    def _put_states(self, states: Mapping[int, tuple[str, bytes]]) -> None:
        """Write states of episodes, each with its session's id, by the sessions' keys."""
        rows = [(key, state, checksum((session_id, state))) for key, (session_id, state) in states.items()]
        many_rows.insert(self._db, "states", "session, state, checksum", rows, replace=True)

    def _delete(self, session_id: str) -> None:
        self._open_totals.pop(session_id, None)
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def _compare(self) -> None:
        """Warn if the file has less than was committed to it; copy it before anything is written."""
        with self._lock, self._errors():
            now = Counts(*self._db.execute("SELECT commits, sessions FROM totals").fetchone())
            before = self._count.read()
        if now.commits >= before.commits:
            return
        copy = integrity.copy_damaged(self.path)
        logger.warning(
            "the session store %r was damaged: %d of %d commits are missing; it has %d sessions and had %d. "
            "A copy was made; to check it: agentrl sessions %s --check",
            *(self.path, before.commits - now.commits, before.commits, now.sessions, before.sessions, copy),
        )

    @contextmanager
    def _transaction(self, count: bool = True) -> Iterator[None]:
        """One commit; within another one, a part of it."""
        with self._lock, self._errors():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                totals = "UPDATE totals SET commits = commits + 1 RETURNING commits, sessions"
                counts = self._db.execute(totals).fetchall()[0] if count else None
                faults.point("store.commit")
                self._db.execute("COMMIT")
            except BaseException:
                self._open_totals.clear()  # its sums include nodes that are not stored
                with suppress(sqlite3.OperationalError):  # a full disk may have ended it already
                    self._db.execute("ROLLBACK")
                raise
            if counts:
                self._count.write(Counts(*counts))

    @contextmanager
    def _querying(self) -> Iterator[None]:
        with self._lock, self._errors():
            if self._read_only:
                edited.show(self._db, self.path)
            yield

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Everything that is read in the block is of one snapshot."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except AgentRLError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise schema.failure(self.path, error) from error


_HEAD = "group_id, status, head, nodes, checksum"
_NODE = f"session, {ROW_COLUMNS}"
_PROGRESS = ", ".join(summary.PROGRESS)

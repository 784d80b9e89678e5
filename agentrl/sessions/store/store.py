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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentrl import faults
from agentrl.common import formats
from agentrl.errors import AgentRLError, InvalidInput, StoreError
from agentrl.sessions.store import digests, edited, integrity, query, schema
from agentrl.sessions.store.integrity import CountFile, Counts, checksum
from agentrl.sessions.store.query import Filters, SessionPage
from agentrl.sessions.store.schema import read_session
from agentrl.sessions.store.summary import Summary
from agentrl.sessions.store.writing import Saving, SessionGrowth, SessionWriter
from agentrl.sessions.tree.incarnations import Loss
from agentrl.types import Node, Session

logger = logging.getLogger(__name__)
PAGE = 10_000
"""Summaries that are read at once."""


class Store:
    """Sessions in a file; safe for several threads, and for several processes, of which one writes at a time.

    Args:
        path: the SQLite file; created if absent. ":memory:" stores nothing on disk.
        timeout: seconds to wait for another process's write.
        read_only: open an existing store, which another process may be writing, without changing it.

    Attributes:
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
        if not read_only and self.path != ":memory:":
            integrity.make_private(self.path)
        try:
            connect = formats.connect_to_read if read_only else sqlite3.connect
            self._db = connect(self.path, timeout, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreError(f"can't open the session store {self.path!r}: {_name_cause(error, self.path)}") from error
        self._rows = SessionWriter(self._db, self.path)
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

    @property
    def losses(self) -> Sequence[Loss]:
        """The rule by which new turns' incarnations follow from their versions."""
        return self._rows.losses

    @losses.setter
    def losses(self, losses: Sequence[Loss]) -> None:
        """Set them; in memory alone."""
        self._rows.losses = losses

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
        self.save_all([Saving(session, replace, state)])

    def save_all(self, savings: Sequence[Saving]) -> None:
        """Write several sessions, of different ids, atomically; see `save`."""
        with self._transaction():
            self._rows.save(savings)

    def begin_all(self, savings: Sequence[Saving]) -> None:
        """Save sessions of different ids that begin, in place of what is stored of these attempts and later ones."""
        with self._transaction():
            self._rows.delete_attempts([one.session for one in savings])
            self._rows.save(savings)

    def append(self, session: Session, nodes: Sequence[Node], state: bytes | None = None) -> None:
        """Add new nodes to a session that was saved before and rewrite its head, atomically.

        `state` takes the place of the episode's state that is stored; None leaves it.

        Raises:
            StoreError: writing failed, the session is not stored, or the nodes are not its next ones.
            InvalidInput: the session holds what JSON can't express.
        """
        self.append_all([SessionGrowth.of(session, nodes, state)])

    def append_all(self, additions: Iterable[SessionGrowth]) -> None:
        """Add to several sessions, atomically; see `append`."""
        with self._transaction():
            self._rows.append(additions)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Everything that is written in the block is one commit."""
        with self._transaction():
            yield

    def delete(self, session_id: str) -> None:
        """Delete a session; does nothing if there is none."""
        with self._transaction():
            self._rows.delete(session_id)

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

    def summaries(self, filters: Filters | None = None) -> Iterator[Summary]:
        """The summaries of all sessions that fit the filters, by when they began; never more than a page in memory."""
        after: str | None = None
        while True:
            page = self.find(filters, limit=PAGE, after=after)
            yield from page.rows
            if (after := page.next) is None:
                return

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
                self._rows.forget()  # its sums include nodes that are not stored
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


def _name_cause(error: sqlite3.Error, path: str) -> str:
    """The system's reason why a file can't be opened, which SQLite does not say."""
    try:
        with open(path, "rb"):
            return str(error)
    except OSError as cause:
        return cause.strerror or str(error)

"""Notes and tags that people give to a run and to its sessions, in `notes.db` beside what the run wrote.

The file is the viewer's alone, so a run never waits for it. Several viewers may write at once: each change is one
transaction, and names the version of the note that it was made from, so nobody's words are lost to somebody else's.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field, FiniteFloat, NonNegativeInt, StringConstraints

from agentrl.common import formats
from agentrl.common.untrusted import safe_text
from agentrl.config.sections import Section
from agentrl.errors import InvalidInput, StoreError

STORE = "notes.db"
RUN = ""
"""The name of the run itself where sessions are named."""
WAIT = 10.0
"""Seconds that a write waits for another viewer's."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (session TEXT PRIMARY KEY, text TEXT NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tags (tag TEXT, session TEXT, PRIMARY KEY (tag, session)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tags_by_session ON tags (session);
"""
Tag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]


class NoteChange(Section):
    """A note as a page sends it."""

    text: str = Field(default="", max_length=10_000)
    tags: tuple[Tag, ...] = Field(default=(), max_length=20)
    version: NonNegativeInt = 0
    """That of the note which the page had; 0 where it had none."""


class ScoreChange(Section):
    """A score of an evaluation that somebody changes on a page; `rollout.episodes.edits` keeps it."""

    score: FiniteFloat
    was: FiniteFloat
    """The score that the page showed."""
    why: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    who: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    """A name, as they give it: who holds the viewer's key may give any."""


@dataclass(frozen=True, slots=True)
class TaggedNote:
    """A note with its tags, in alphabetical order; `version` counts its changes."""

    text: str = ""
    tags: tuple[str, ...] = ()
    version: int = 0

    def json(self) -> dict[str, Any]:
        """Return the note for the page."""
        return asdict(self)


class Notes:
    """The notes of a run and its sessions; safe for several threads and processes."""

    def __init__(self, run: Path) -> None:
        self.path = run / STORE

    def of(self, sessions: Sequence[str]) -> dict[str, TaggedNote]:
        """The notes of those sessions that have one; `RUN` is the run's."""
        marks = ", ".join("?" * len(sessions))
        with self._reading() as db:
            if db is None:
                return {}
            tags: dict[str, list[str]] = {}
            for session, tag in db.execute(f"SELECT session, tag FROM tags WHERE session IN ({marks})", sessions):
                tags.setdefault(session, []).append(tag)
            rows = db.execute(f"SELECT session, text, version FROM notes WHERE session IN ({marks})", sessions)
            return {session: TaggedNote(text, tuple(tags.get(session, ())), version) for session, text, version in rows}

    def one(self, session: str = RUN) -> TaggedNote:
        """The note of a session, or of the run; an empty one where there is none."""
        return self.of([session]).get(session, TaggedNote())

    def tagged(self, tags: Sequence[str]) -> list[str]:
        """The sessions that have one of the tags."""
        select = f"SELECT DISTINCT session FROM tags WHERE session != ? AND tag IN ({', '.join('?' * len(tags))})"
        with self._reading() as db:
            return [] if db is None else [row[0] for row in db.execute(select, (RUN, *tags))]

    def counts(self) -> dict[str, int]:
        """Return the number of sessions with each tag."""
        with self._reading() as db:
            select = "SELECT tag, count(*) FROM tags WHERE session != ? GROUP BY tag"
            return {} if db is None else dict(db.execute(select, (RUN,)).fetchall())

    def put(self, session: str, change: NoteChange) -> TaggedNote:
        """Change a note.

        Raises:
            InvalidInput: it was changed since the page read it.
            StoreError: writing failed.
        """
        tags = sorted({safe_text(tag) for tag in change.tags})
        note = TaggedNote(safe_text(change.text), tuple(tags), change.version + 1)
        with self._errors(), closing(sqlite3.connect(self.path, WAIT, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            formats.mark_database(db, formats.NOTES)
            found = db.execute("SELECT version FROM notes WHERE session = ?", (session,)).fetchone()
            if (found[0] if found else 0) != change.version:
                raise InvalidInput("this note was changed by somebody else meanwhile: load the page again")
            db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (session, note.text, note.version))
            db.execute("DELETE FROM tags WHERE session = ?", (session,))
            db.executemany("INSERT INTO tags VALUES (?, ?)", [(tag, session) for tag in tags])
            db.execute("COMMIT")
        return note

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """The file, if there is one yet."""
        if not self.path.is_file():
            yield None
            return
        mode = (
            "rw" if os.access(self.path, os.W_OK) else "ro"
        )  # what a killed writer left is undone by one who may write
        with (
            self._errors(),
            closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode={mode}", WAIT, uri=True)) as db,
        ):
            yield db if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'tags'").fetchone() else None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        formats.check_database(self.path, formats.NOTES)
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"notes {str(self.path)!r}: {error}") from error

"""The version numbers of what runs leave on the disk: their folders, checkpoints, manifests and databases.

A number is raised by a change that an older reader would misunderstand. A reader takes every number up to its own:
`tests/records` has what older versions wrote, and what says no number has the first one. Beside a number stands which
agentrl wrote it, so a reader that is too old names the one that is needed, and leaves everything as it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentrl import __version__
from agentrl.errors import ConfigError, NewerFormat

NAME = "format.json"
"""The file of a run's folder that has its number."""
ABOUT = "CREATE TABLE IF NOT EXISTS about (agentrl TEXT NOT NULL)"
"""A database has its number as `user_version`, and here the agentrl that wrote it."""


@dataclass(frozen=True, slots=True)
class Format:
    """A numbered format.

    Attributes:
        what: its name, for messages.
        number: of what this agentrl writes.
    """

    what: str
    number: int

    def mark(self) -> dict[str, Any]:
        """The keys that say which format something has, and which agentrl wrote it."""
        return {"format": self.number, "agentrl": __version__}

    def check(self, found: Mapping[str, Any], where: Path | str) -> int:
        """The number of something that was read; 1 where it has none.

        Raises:
            NewerFormat: a later agentrl wrote it.
            ConfigError: its number is none.
        """
        number = found.get("format", 1)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"{where}: format={number!r} is damaged: a number from 1 to {self.number} is expected")
        if number > self.number:
            raise self.newer(number, found.get("agentrl"), where)
        return number

    def newer(self, number: int, writer: Any, where: Path | str) -> NewerFormat:
        """The error that something was written by a later agentrl."""
        needed = f"use agentrl {writer} or later" if writer else "use a later agentrl"
        return NewerFormat(
            f"{where}: this {self.what} has format {number}, and agentrl {__version__} reads formats up to "
            f"{self.number}: {needed}"
        )


RUN = Format("run folder", 2)
CHECKPOINT = Format("checkpoint", 1)
MANIFEST = Format("manifest", 1)
STORE = Format("session store", 8)
NOTES = Format("file of notes", 1)
LOGPROBS = Format("file of log-probabilities", 1)
CHAIN = Format("chain", 1)


def mark_run() -> bytes:
    """The content of a run folder's `format.json`."""
    return json.dumps(RUN.mark()).encode() + b"\n"


def check_run(folder: Path) -> int:
    """The number of a run's folder; 1 where it says none, as of runs before there were numbers.

    Raises:
        NewerFormat: a later agentrl wrote it.
        ConfigError: `format.json` is damaged.
    """
    try:
        found = json.loads((folder / NAME).read_bytes())
    except FileNotFoundError:
        return 1
    except ValueError as error:
        raise ConfigError(f"{folder / NAME} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{folder / NAME} is damaged: it is {found!r}")
    return RUN.check(found, folder)


def mark_database(db: sqlite3.Connection, written: Format) -> None:
    """Write a database's number and this agentrl, in the transaction that is open."""
    db.execute(ABOUT)
    db.execute("DELETE FROM about")
    db.execute("INSERT INTO about VALUES (?)", (__version__,))
    db.execute(f"PRAGMA user_version = {written.number}")


def connect_to_read(
    path: Path | str, timeout: float = 5.0, *, untouched: bool = False, **options: Any
) -> sqlite3.Connection:
    """Open a database that SQLite keeps a log of, without changing it.

    A reader makes files for the log beside it. Where the folder can't be written (a disk mounted read-only, somebody
    else's run), a database without a log is read as one that nobody writes. So is one with a log that has no index,
    which whoever writes would have made: SQLite makes it in memory, as it does where it locks nothing.

    Args:
        path: its file.
        timeout: seconds to wait for another process's write.
        untouched: make no files beside it in any case.
        options: as of `sqlite3.connect`.
    """
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    way = ""
    if untouched or not os.access(Path(path).resolve().parent, os.W_OK):
        if not log.exists() or not (log.stat().st_size or index.exists()):
            way = "&immutable=1"
        elif not index.exists():
            way = "&vfs=unix-none"
    db: sqlite3.Connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro{way}", timeout, uri=True, **options)
    if "vfs" in way:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
    return db


def check_database(path: Path | str, expected: Format, named: Path | None = None) -> None:
    """Refuse a database that a later agentrl wrote, before anything opens it that might write.

    Raises:
        NewerFormat: a later agentrl wrote it.
    """
    file = Path(path)
    if not file.is_file() or not file.stat().st_size:
        return
    try:
        with closing(connect_to_read(path, untouched=True)) as db:
            number = int(db.execute("PRAGMA user_version").fetchone()[0])
            if number <= expected.number:
                return
            writer = None
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone():
                writer = db.execute("SELECT agentrl FROM about").fetchone()
    except sqlite3.Error:
        return  # it is damaged, which whoever opens it says better
    raise expected.newer(number, writer and writer[0], named or path)

"""Detecting damage to a store's file: a checksum for each row, counts in it, and a count in a file next to it.

SQLite detects damage to its own structure, and ends its log at the first damaged frame; it notices neither the loss of
what followed nor a flipped bit in a row. So each row has a checksum, each session the number of its nodes, and a small
file next to the store (`-count`) the numbers of commits and sessions. That file is written after each commit: it may
lag behind the store; if it is ahead, commits are missing.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

COUNT_BYTES = 64


def checksum(values: Iterable[Any]) -> int:
    """CRC-32 of a row's values, which must have the types that SQLite returns: floats in a REAL column."""
    values = tuple(values)
    crc = zlib.crc32(orjson.dumps(values, default=len))  # JSON has no bytes: their length stands for them
    for value in values:
        if isinstance(value, bytes):
            crc = zlib.crc32(value, crc)
    return crc


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of transactions committed to a store, and of its sessions."""

    commits: int = 0
    sessions: int = 0


def make_private(path: str) -> None:
    """Make a new store's file one that its user alone reads; the files that SQLite puts beside it have its mode."""
    with suppress(OSError):  # it is there, or can't be made, which opening it says
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


class CountFile:
    """The small file next to a store.

    Args:
        store: the store's path; ":memory:" has none.
    """

    def __init__(self, store: str) -> None:
        self.path = None if store == ":memory:" else Path(f"{store}-count")
        self._descriptor: int | None = None

    def read(self) -> Counts:
        """The recorded counts; zeros if there is none, or if it is damaged itself."""
        try:
            text = self.path.read_bytes() if self.path else b""
            commits, sessions, crc = text.split()
            if zlib.crc32(b"%s %s" % (commits, sessions)) == int(crc, 16):
                return Counts(int(commits), int(sessions))
        except (OSError, ValueError):
            pass
        return Counts()

    def write(self, counts: Counts) -> None:
        """Record the counts, in one write; a failed write is ignored, since the sessions are stored."""
        if self.path is None:
            return
        text = b"%d %d" % (counts.commits, counts.sessions)
        line = b"%s %08x" % (text, zlib.crc32(text))
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, line.ljust(COUNT_BYTES - 1) + b"\n", 0)
        except OSError:
            pass

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def copy_damaged(store: str) -> Path:
    """Copy a store's files as they are, next to it; returns the copy's path."""
    for number in range(1, 1000):
        copy = Path(f"{store}.damaged{number}")
        if not copy.exists():
            break
    copy_files(Path(store), copy)
    return copy


def copy_files(store: Path, copy: Path) -> None:
    """Copy a store's file, its log and its count, without SQLite, which would truncate the log where it is damaged."""
    for ending in ("", "-wal", "-count"):
        if (source := Path(f"{store}{ending}")).exists():
            shutil.copyfile(source, f"{copy}{ending}")

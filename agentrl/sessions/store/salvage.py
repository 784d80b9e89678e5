"""Finds the undamaged sessions of a store, and saves them: `agentrl sessions FILE --check`, `--salvage NEW`.

SQLite drops everything in a damaged log from the first damaged frame on, and overwrites it permanently. So nothing here
opens a store that is truncated, or whose log is damaged: its files are copied; in the copy every frame of the log gets
the checksums that SQLite expects, and a truncated main file is padded to its length. Any other store is read where it
lies, also while a run writes it. The rows' own checksums (`integrity`) decide what is undamaged.
"""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.common import formats
from agentrl.errors import InvalidInput, StoreError
from agentrl.sessions.store.integrity import CountFile, Counts, copy_files
from agentrl.sessions.store.schema import read_session
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.summary import COLUMNS, SELECTED, Totals, values
from agentrl.types import Session

HEADER, WAL_HEADER, FRAME_HEADER = 100, 32, 24
"""Lengths in bytes; see https://www.sqlite.org/fileformat2.html#the_write_ahead_log."""
SHOWN = 20
TRIES = 5
"""Looks at a store's files before they are taken for damaged."""


@dataclass(slots=True)
class SalvageReport:
    """The result of a check.

    Attributes:
        undamaged: the ids of sessions that are as they were written.
        damaged: what is wrong with each of the others.
        lost: how many sessions were committed and not found.
        faults: what is wrong with the file itself.
    """

    undamaged: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    lost: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if the store is as it was written."""
        return not (self.damaged or self.lost or self.faults)

    def lines(self) -> list[str]:
        """The report in lines of text."""
        lines = [f"{len(self.undamaged)} sessions are undamaged, {len(self.damaged)} damaged, {self.lost} lost"]
        lines += self.faults
        lines += [f"  {reason}" for reason in list(self.damaged.values())[:SHOWN]]
        if len(self.damaged) > SHOWN:
            lines.append(f"  … and {len(self.damaged) - SHOWN} more")
        return lines


def check(path: Path, out: Path | None = None) -> SalvageReport:
    """Check a store without changing it.

    Args:
        path: the store's file.
        out: a new store for the undamaged sessions; None saves nothing.

    Raises:
        InvalidInput: there is no such file, or `out` exists.
        NewerFormat: a later agentrl wrote it.
        StoreError: `out` can't be written.
    """
    if not path.is_file():
        raise InvalidInput(f"{str(path)!r}: no such file; give a session store (sessions.db) or a run's folder")
    if out is not None and out.exists():
        raise InvalidInput(f"{str(out)!r} exists; salvage into a new file")
    report = SalvageReport()
    written = CountFile(str(path)).read()  # before the store, which may go on
    try:
        with _open(path, report) as db:
            found = _inspect(db, report, written)
            _save(found, out) if out is not None else all(found)
    except (sqlite3.Error, struct.error) as error:
        report.faults.append(f"the rest of the file can't be read: {error}")
    return report


@contextmanager
def _open(path: Path, report: SalvageReport) -> Iterator[sqlite3.Connection]:
    """One snapshot of a store, or a repaired copy of it; the report gets what was wrong with its files."""
    for _ in range(TRIES):  # what a run is just writing looks like damage
        if not _find_faults(path):
            formats.check_database(path, formats.STORE)
            with closing(formats.connect_to_read(path, untouched=True, isolation_level=None)) as db:
                db.execute("BEGIN")
                yield db
            return
    with tempfile.TemporaryDirectory(prefix="agentrl-check-") as folder:
        copy = Path(folder) / "store.db"
        copy_files(path, copy)
        formats.check_database(copy, formats.STORE, path)
        report.faults += _find_faults(copy, repair=True)
        with closing(sqlite3.connect(copy)) as db:
            yield db


def _save(sessions: Iterator[Session], out: Path) -> None:
    with Store(out) as store:
        for session in sessions:
            store.save(session)


def _inspect(db: sqlite3.Connection, report: SalvageReport, written: Counts) -> Iterator[Session]:
    """The undamaged sessions, one by one; the report gets everything else."""
    faults = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
    report.faults += [f"SQLite reports: {fault}" for fault in faults if fault != "ok"]
    keys = _keys(db)
    for id_, key in keys.items():
        try:
            session = read_session(db, key)
        except (StoreError, sqlite3.Error) as error:
            report.damaged[id_] = str(error) if isinstance(error, StoreError) else f"session {id_!r}: {error}"
            continue
        if session is None:
            report.damaged[id_] = f"session {id_!r} is in an index, but not in its table"
            continue
        report.undamaged.append(id_)
        if wrong := _wrong_summary(db, key, session):
            report.faults.append(f"session {id_!r} is undamaged, but its summary is not: {wrong}")
        yield session
    try:
        commits, sessions = db.execute("SELECT commits, sessions FROM totals").fetchone()
    except (sqlite3.Error, TypeError):
        commits, sessions = 0, 0
        report.faults.append("the number of sessions in the file can't be read")
    if written.commits > commits:
        report.faults.append(f"{written.commits - commits} of {written.commits} commits are missing")
    expected = written.sessions if written.commits >= commits else sessions
    report.lost = max(0, max(expected, sessions) - len(keys))


def _keys(db: sqlite3.Connection) -> dict[str, int]:
    """Every session's id and key that some table or index still has."""
    found: dict[str, int] = {}
    for query in (
        "SELECT id, key FROM sessions ORDER BY key",
        "SELECT id, key FROM sessions ORDER BY key DESC",
        "SELECT id, key FROM sessions INDEXED BY sessions_by_id WHERE id >= ''",
        "SELECT id, session FROM summaries ORDER BY session",
        "SELECT id, session FROM summaries ORDER BY session DESC",
    ):
        try:
            for id_, key in db.execute(query):
                if isinstance(id_, str) and isinstance(key, int):
                    found.setdefault(id_, key)
        except sqlite3.Error:
            continue
    return dict(sorted(found.items()))


def _wrong_summary(db: sqlite3.Connection, key: int, session: Session) -> str:
    """The wrong columns of a session's summary, in words; '' if none is."""
    expected = values(session, Totals.of(session.nodes))
    try:
        row = db.execute(f"SELECT {SELECTED} FROM summaries WHERE session = ?", (key,)).fetchone()
    except sqlite3.Error as error:
        return str(error)
    if row is None:
        return "it is missing"
    return ", ".join(name for name, one, two in zip(COLUMNS, expected, row, strict=True) if one != two)


def _find_faults(path: Path, *, repair: bool = False) -> list[str]:
    """Return what is wrong with a store's files; `repair`: make them, a copy, readable as far as possible."""
    faults, size = [], path.stat().st_size
    with path.open("rb") as file:
        data = file.read(HEADER)
    page = int.from_bytes(data[16:18], "big")
    page = 65536 if page == 1 else page
    if data[:16] != b"SQLite format 3\0" or page < 512 or page & (page - 1):
        raise sqlite3.DatabaseError("its first bytes are not a database's")
    pages = int.from_bytes(data[28:32], "big")
    if data[24:28] == data[92:96] and size < pages * page:  # else the number is not maintained
        faults.append(f"the file is truncated: {size} of {pages * page} bytes")
        if repair:
            with path.open("ab") as file:
                file.truncate(pages * page)
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size > WAL_HEADER:
        repaired, wrong = _repaired_log(log.read_bytes(), page)
        if repair:
            log.write_bytes(repaired)
        faults += wrong
    return faults


def _repaired_log(log: bytes, page: int) -> tuple[bytes, list[str]]:
    """A write-ahead log whose frames all have the checksums that SQLite expects, and what was wrong with it."""
    size = FRAME_HEADER + page
    starts = range(WAL_HEADER, len(log) - size + 1, size)
    if not starts:
        return b"", []
    magic, *_, salt1, salt2 = struct.unpack(">IIIIII", log[:24])
    order = "<" if magic == 0x377F0682 else ">"
    faults = []
    if magic not in (0x377F0682, 0x377F0683) or _sums(log[:24], order, (0, 0)) != struct.unpack(">II", log[24:32]):
        faults.append("the log's header is damaged")
        salt1, salt2 = struct.unpack(">II", log[starts[0] + 8 : starts[0] + 16])
        order = "<"
    header = struct.pack(">IIIIII", 0x377F0682 + (order == ">"), 3007000, page, 0, salt1, salt2)
    sums = true_sums = _sums(header, order, (0, 0))
    if not faults:
        true_sums = struct.unpack(">II", log[24:32])
        header = log[:24]
        sums = true_sums
    repaired, broken = [header + struct.pack(">II", *sums)], []
    for number, at in enumerate(starts):
        frame = log[at : at + size]
        if struct.unpack(">II", frame[8:16]) != (salt1, salt2) and number:
            break  # of the log before its last reset
        body = frame[:8] + frame[FRAME_HEADER:]
        true_sums = _sums(body, order, true_sums)
        if true_sums != struct.unpack(">II", frame[16:24]):
            broken.append(number)
            true_sums = struct.unpack(">II", frame[16:24])
        sums = _sums(body, order, sums)
        repaired.append(frame[:8] + struct.pack(">IIII", salt1, salt2, *sums) + frame[FRAME_HEADER:])
    if broken:
        faults.append(f"the log is damaged at frame {broken[0] + 1} of {len(repaired) - 1}")
    return b"".join(repaired), faults


def _sums(data: bytes, order: str, before: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of a log: two running sums over pairs of 32-bit numbers."""
    a, b = before
    numbers = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(numbers[::2], numbers[1::2], strict=True):
        a = (a + even + b) & 0xFFFFFFFF
        b = (b + odd + a) & 0xFFFFFFFF
    return a, b

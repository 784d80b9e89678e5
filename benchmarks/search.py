"""What a text search in a large store takes: the scan (`sessions.search`), and SQLite's index of three letters (FTS5).

    python -m benchmarks.search [sessions, 100,000 by default] [sessions that are indexed, 20,000 by default]

Sessions have seven messages of about 300 characters. The store writes `TEMPLATES` of them; the others are copies of
their rows, so that the file is there soon. Times are seconds of CPU, medians of `ROUNDS`; the index is built once,
beside the store, over the messages of its first sessions.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agentrl.sessions import tree
from agentrl.sessions.search import search
from agentrl.sessions.store import Store
from agentrl.sessions.summary import COLUMNS
from agentrl.types import Message, Session, Status, Task
from benchmarks.machine import machine

ROUNDS = 3
TEMPLATES = 1000
MESSAGES = 7
RARE = "KeyError: 'needle'"
COMMON = "w17 "


def write(path: Path, count: int) -> None:
    """A store of so many sessions, the last of which has `RARE` in a message."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(5000)]
    with Store(path) as store, store.batch():
        for number in range(TEMPLATES):
            session = Session(f"s{number}", Task(id="t"), phase="train", step=0, status=Status.COMPLETED)
            for place in range(MESSAGES):
                text = " ".join(rng.choices(words, k=60))
                message = Message(role="assistant" if place % 2 else "user", content=text)
                tree.add(session, place - 1 if place else None, message, [1] * 80)
            store.save(session)
    with closing(sqlite3.connect(path)) as db, db:
        names = ", ".join(f'"{name}"' for name in COLUMNS if name != "id")
        columns = [row[1] for row in db.execute("PRAGMA table_info(nodes)") if row[1] != "session"]
        own = ", ".join(columns)
        for copy in range(1, count // TEMPLATES):
            shift = copy * TEMPLATES
            heads = "key + ?1, id || '-' || ?1, group_id, status, head, nodes, checksum"
            db.execute(
                f"INSERT INTO sessions (key, id, group_id, status, head, nodes, checksum) SELECT {heads} "
                f"FROM sessions WHERE key <= {TEMPLATES}",
                (shift,),
            )
            db.execute(
                f"INSERT INTO nodes (session, {own}) SELECT session + ?, {own} FROM nodes WHERE session <= {TEMPLATES}",
                (shift,),
            )
            db.execute(
                f"INSERT INTO summaries (session, id, {names}) SELECT session + ?1, id || '-' || ?1, {names} "
                f"FROM summaries WHERE session <= {TEMPLATES}",
                (shift,),
            )
        last = db.execute("SELECT max(key) FROM sessions").fetchone()[0]
        rare = Message(role="tool", content=RARE, tool_call_id="c").model_dump_json(exclude_none=True)
        changed = ", ".join({"id": "7", "message": "?"}.get(name, name) for name in columns)
        copied = f"INSERT INTO nodes (session, {own}) SELECT session, {changed} FROM nodes WHERE session = ? AND id = 6"
        db.execute(copied, (rare, last))


def scanned(path: Path, text: str, limit: int) -> int:
    """How many sessions the scan finds, over all of its parts, up to a limit."""
    after, found = None, 0
    while True:
        part = search(path, text, limit=limit, after=after)
        after, found = part.next, found + len(part.rows)
        if after is None or found >= limit:
            return found


def index(path: Path, beside: Path, count: int) -> None:
    """Index the messages of the first sessions, by their three-letter parts, without a copy of the text."""
    with closing(sqlite3.connect(beside)) as db, db:
        db.execute("ATTACH ? AS run", (f"file:{path}?mode=ro",))
        db.execute("CREATE VIRTUAL TABLE texts USING fts5(text, content='', tokenize='trigram')")
        db.execute("INSERT INTO texts (rowid, text) SELECT rowid, message FROM run.nodes WHERE session <= ?", (count,))


def indexed(beside: Path, text: str) -> int:
    """How many messages the index finds."""
    with closing(sqlite3.connect(beside)) as db:
        quoted = '"' + text.replace('"', '""') + '"'
        return len(db.execute("SELECT rowid FROM texts WHERE texts MATCH ? LIMIT 10000", (quoted,)).fetchall())


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median time of a piece of work."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def main() -> None:
    """Write a store, and search it both ways."""
    count, part = (int(word) for word in (sys.argv[1:] + ["100000", "20000"][len(sys.argv) - 1 :])[:2])
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        path, beside = Path(name) / "sessions.db", Path(name) / "index.db"
        write(path, count)
        size = path.stat().st_size
        print(f"{count:,} sessions, {count * MESSAGES:,} messages, a store of {size / 2**20:,.0f} MiB")
        whole = seconds(lambda: scanned(path, RARE, 100), 1)
        print(f"scan, a text that the last session has      {whole:8.2f} s")
        print(f"scan, until the first such part is answered {seconds(lambda: search(path, RARE)):8.2f} s")
        print(f"scan, a text that one session in six has    {seconds(lambda: scanned(path, COMMON, 100)):8.2f} s")
        built = seconds(lambda: index(path, beside, part), 1)
        share = count / part
        print(
            f"index of {part:,} sessions: built in            {built:8.2f} s, for all of them {built * share:.0f} s: "
            f"{built * share / whole:.0f} whole scans"
        )
        print(f"its size, by that of their part of the store {beside.stat().st_size / size * share:7.2f}")
        print(f"a text in the index                         {seconds(lambda: indexed(beside, RARE)):8.3f} s")


if __name__ == "__main__":
    main()

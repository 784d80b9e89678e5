"""What listing a large store costs, what a turn costs that is appended to one, and a search for a text.

    python -m benchmarks.store [sessions, 100,000 by default]
    python -m benchmarks.store search [sessions] [sessions that are indexed, 20,000 by default]

Sessions are of one run: steps of 64, eight to a group, a few turns. Times are medians of `ROUNDS` in milliseconds of
wall clock, so they are worth something on a quiet machine only; an append's is CPU time.

`search` compares the scan that the viewer does (`sessions.store.search`) with SQLite's index of three letters (FTS5).
Sessions have seven messages of about 300 characters. The store writes `TEMPLATES` of them; the others are copies of
their rows, so that the file is there soon. Times are seconds of CPU, medians of `SEARCHES`; the index is built once,
beside the store.
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
from typing import Any

from agentrl.sessions.store.query import Between, Contains
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.search import search
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.summary import COLUMNS
from agentrl.sessions.tree import tree
from agentrl.types import FinishReason, Message, Node, Sampling, Session, Status, Task, Turn, VersionSpan
from benchmarks.machine import machine

ROUNDS = 9
BATCH = 2000
TURNS = 200
TOGETHER = 32
SEARCHES = 3
TEMPLATES = 1000
MESSAGES = 7
RARE = "KeyError: 'needle'"
COMMON = "w17 "


def made(number: int, rng: random.Random) -> Session:
    """A session of two nodes, as it ended."""
    group, step = number // 8, number // 64
    session = Session(f"train-{group}.0-{number % 8}", Task(id=f"t{group}", data={"text": "x" * 200}))
    session.group, session.group_number, session.sample, session.phase = f"train-{group}.0", group, number % 8, "train"
    session.step, session.environment, session.started = step, rng.choice(["code", "shop"]), 1e9 + number
    add_turn(session, step)
    session.status = rng.choices([Status.COMPLETED, Status.TRUNCATED, Status.AGENT_ERROR], [90, 9, 1])[0]
    session.reward, session.rewards = round(rng.random(), 3), {"solved": float(rng.random() < 0.4)}
    session.error = "ValueError: no such file" if session.status is Status.AGENT_ERROR else None
    session.ended = session.started + rng.expovariate(0.1)
    return session


def add_turn(session: Session, version: int) -> list[Node]:
    """A message and a turn; the nodes."""
    parent = len(session.nodes) - 1 if session.nodes else None
    asked = tree.add(session, parent, Message(role="user", content="result " * 20), list(range(40)))
    ids = tuple(range(40))
    turn = Turn(ids, (-0.5,) * 40, (VersionSpan(version, 0, 40),), FinishReason.STOP)
    return [
        asked,
        tree.add_turn(session, asked.id, [1, 2], turn, Sampling(), Message(role="assistant", content="x" * 99)),
    ]


def median(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter, rounds: int = ROUNDS) -> float:
    """Return the median of a piece of work's milliseconds."""
    times = []
    for _ in range(rounds):
        began = clock()
        work()
        times.append(clock() - began)
    return statistics.median(times) * 1e3


def listing(count: int) -> None:
    """Fill a store, and time what a viewer does with it."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "sessions.db") as writer:
        for start in range(0, count, BATCH):
            with writer.batch():
                for number in range(start, min(count, start + BATCH)):
                    writer.save(made(number, rng))
        with Store(writer.path, read_only=True) as store:
            half = count // 128
            middle = store.find(sort="score", limit=100, after=f"[0.5,{count // 2}]")
            questions: dict[str, Callable[[], Any]] = {
                "first page of 100": lambda: store.find(limit=100),
                "100 best by score": lambda: store.find(sort="score", descending=True),
                "a page in the middle, by score": lambda: store.find(sort="score", after=middle.next),
                "a step's sessions by score": lambda: store.find({"phase": "train", "step": half}, sort="score"),
                "errors with a text": lambda: store.find({"status": "agent_error", "error": Contains("no such")}),
                "100 longest by duration": lambda: store.find(sort="duration", descending=True),
                "100 largest by tokens (no index)": lambda: store.find(sort="tokens", descending=True),
                "by a reward's name (no index)": lambda: store.find(
                    {"reward/solved": Between(1)}, sort="reward/solved"
                ),
                "counts by status": store.counts,
                "counts by step": lambda: store.counts("step"),
            }
            for name, question in questions.items():
                print(f"{name:36} {median(question):8.2f} ms")
        session = Session("open", Task(id="t"), phase="train", step=0)
        writer.save(session)
        turns = [add_turn(session, 0) for _ in range(TURNS * ROUNDS)]
        left = iter(turns)

        def append() -> None:
            for _ in range(TURNS):
                writer.append(session, next(left))

        print(f"{'a turn appended (CPU)':36} {median(append, time.process_time) / TURNS:8.3f} ms")
        print(f"{f'the same, {TOGETHER} sessions at once (CPU)':36} {append_together(writer):8.3f} ms")


def append_together(writer: Store) -> float:
    """Return the least CPU milliseconds of a turn that a run's recorder writes with those of other sessions."""
    sessions = [Session(f"open-{number}", Task(id="t"), phase="train", step=0) for number in range(TOGETHER)]
    for session in sessions:
        writer.save(session)
    times = []
    for _ in range(ROUNDS):
        for session in sessions:
            add_turn(session, 0)
        with Recorder(writer) as recorder:
            recorder._recorded = {session.id: len(session.nodes) - 2 for session in sessions}
            began = time.process_time()
            for session in sessions:
                recorder.update(session)
        times.append(time.process_time() - began)
    return min(times) / TOGETHER * 1e3


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


def seconds(work: Callable[[], object], rounds: int = SEARCHES) -> float:
    """Return the median of a piece of work's CPU seconds."""
    return median(work, time.process_time, rounds) / 1e3


def searching(count: int, part: int) -> None:
    """Write a store, and search it both ways."""
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


def main() -> None:
    words = sys.argv[1:]
    print(machine())
    if words[:1] == ["search"]:
        count, part = (int(word) for word in [*words[1:], *["100000", "20000"][len(words) - 1 :]])
        searching(count, part)
    else:
        listing(int(words[0]) if words else 100_000)


if __name__ == "__main__":
    main()

"""`agentrl sessions RUN --follow`: the messages of sessions under way, as the run stores them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from agentrl.common.untrusted import visible_text
from agentrl.sessions.store.query import Filters
from agentrl.sessions.store.store import PAGE
from agentrl.sessions.store.summary import Summary
from agentrl.train.display.panel import short
from agentrl.types import Node, Status
from agentrl.viewer.images import preview
from agentrl.viewer.runs import Run, RunStatus

INTERVAL = 1.0
"""Seconds between two looks at the store."""
MOST = 100_000
"""Sessions that a look takes."""
TEXT = 300
"""Characters of a message that are shown."""


def follow(run: Run, wanted: Filters, interval: float = INTERVAL) -> Iterator[str]:
    """Yield what happens in the run's sessions from now on, a line each, until the run ends."""
    follower = Follower(run, wanted)
    yield f"{run.name}: {follower.begin()} sessions under way"
    while True:
        state = run.summary()["state"]
        yield from follower.look()
        if state is not RunStatus.RUNNING:
            yield f"{run.name}: {state}"
            return
        time.sleep(interval)


class Follower:
    """Knows which messages it has shown.

    A look costs as much as there is under way and new, however many sessions are stored, and asks no clock.
    """

    def __init__(self, run: Run, wanted: Filters) -> None:
        self._run, self._wanted = run, wanted
        self._shown: dict[str, int] = {}
        self._open: set[str] = set()
        self._last: str | None = None  # `SessionPage.last` of what is stored

    def begin(self) -> int:
        """Take what is stored as shown; returns how many sessions are under way."""
        if not self._run.database.exists():
            return 0
        store = self._run.store()
        self._last = store.find(descending=True, limit=1).last
        rows = store.find({"status": Status.OPEN.value}, limit=MOST).rows
        self._shown = {row.id: row.nodes for row in rows}
        self._open = set(self._shown)
        return len(self._find(self._open)) if "status" not in self._wanted else len(rows)

    def look(self) -> Iterator[str]:
        """Yield what is new since the last look: messages, and how sessions ended."""
        if not self._run.database.exists():
            return
        new = self._read_new()
        now = {row.id for row in self._run.store().find({"status": Status.OPEN.value}, limit=MOST).rows}
        rows = self._find(self._open | now | new)
        ended = [row for row in rows if row.status is not Status.OPEN]
        for row in ended:
            yield from self._new(row)
            yield _line(row.id, _end(row))
        for row in (row for row in rows if row.status is Status.OPEN):
            yield from self._new(row)
        self._open = now - {row.id for row in ended}
        self._shown = {id_: nodes for id_, nodes in self._shown.items() if id_ in self._open}

    def _read_new(self) -> set[str]:
        """The sessions that were stored since the last look."""
        found = set[str]()
        while (page := self._run.store().find(limit=PAGE, after=self._last)).last is not None:
            self._last = page.last
            found |= {row.id for row in page.rows}
        return found

    def _new(self, row: Summary) -> Iterator[str]:
        """The messages of a session that were not shown."""
        known = self._shown.get(row.id, 0)
        if row.nodes > known:
            nodes = self._run.store().load(row.id).nodes
            self._shown[row.id] = len(nodes)
            yield from (_line(row.id, summarize_message(node)) for node in nodes[known:])

    def _find(self, ids: set[str]) -> list[Summary]:
        """Those of the sessions that are wanted."""
        if not ids:
            return []
        wanted = self._wanted if "id" in self._wanted else {**self._wanted, "id": ids}
        return [row for row in self._run.store().find(wanted, limit=MOST).rows if row.id in ids]


def summarize_message(node: Node) -> str:
    """A message in a line: who says what, and calls what."""
    message = node.message
    who = message.role if message.role != "assistant" else node.agent
    calls = [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or ()]
    text = " ".join(filter(None, (preview(message).strip(), *calls))).replace("\n", " ")
    return f"{who}: {text[:TEXT]}{'…' if len(text) > TEXT else ''}"


def _end(row: Summary) -> str:
    score = "" if row.score is None else f", score {short(row.score)}"
    return f"{row.status.value}{score}, {row.turns} turns, {row.tokens} tokens"


def _line(session: str, text: str) -> str:
    return visible_text(f"{session}  {text}", keep="")

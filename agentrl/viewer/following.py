"""`agentrl sessions RUN --follow`: the messages of sessions under way, as the run stores them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from agentrl.common.untrusted import visible_text
from agentrl.sessions.store.query import Between, Filters
from agentrl.sessions.store.summary import Summary
from agentrl.train.display.panel import short
from agentrl.types import Node, Status
from agentrl.viewer.images import preview
from agentrl.viewer.runs import Run, RunStatus

INTERVAL = 1.0
"""Seconds between two looks at the store."""
LATE = 60.0
"""Seconds by which a session may be stored after it ended."""
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
    """Knows which messages it has shown."""

    def __init__(self, run: Run, wanted: Filters) -> None:
        self._run, self._wanted = run, {name: value for name, value in wanted.items() if name != "status"}
        self._shown: dict[str, int] = {}
        self._ended: dict[str, float] = {}
        self._since = time.time()

    def begin(self) -> int:
        """Take what is stored as shown; returns how many sessions are under way."""
        if not self._run.database.exists():
            return 0
        self._ended = {row.id: row.ended or 0.0 for row in self._find("ended", Between(self._since - LATE, None))}
        self._shown = {row.id: row.nodes for row in self._find("status", Status.OPEN.value)}
        return len(self._shown)

    def look(self) -> Iterator[str]:
        """Yield what is new since the last look: messages, and how sessions ended."""
        if not self._run.database.exists():
            return
        now = time.time()
        ended = [row for row in self._find("ended", Between(self._since - LATE, None)) if row.id not in self._ended]
        under_way = self._find("status", Status.OPEN.value)  # after those that ended: none is in both
        for row in ended:
            yield from self._new(row)
            yield _line(row.id, _end(row))
            self._shown.pop(row.id, None)
        for row in under_way:
            yield from self._new(row)
        self._ended |= {row.id: row.ended or 0.0 for row in ended}
        self._ended = {id_: at for id_, at in self._ended.items() if at >= now - LATE}
        self._since = now

    def _new(self, row: Summary) -> Iterator[str]:
        """The messages of a session that were not shown."""
        known = self._shown.get(row.id, 0)
        if row.nodes > known:
            nodes = self._run.store().load(row.id).nodes
            self._shown[row.id] = len(nodes)
            yield from (_line(row.id, summarize_message(node)) for node in nodes[known:])

    def _find(self, name: str, value: object) -> list[Summary]:
        return self._run.store().find({**self._wanted, name: value}, limit=MOST).rows


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

"""A summary of each session: the columns that a viewer filters and sorts by, stored with the session.

They are computed from the session and its nodes, and never read back into one: `Store.load` takes its own checksummed
rows. What changes with every turn is added up node by node (`Totals`), so that a turn costs the same however long its
session is; no index has a column that changes with a turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from agentrl.common.untrusted import safe_text
from agentrl.errors import Blame
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.codec import dumps
from agentrl.types import MAIN, Node, Session, Status

ERROR_CHARS = 400
"""Characters of an error that the summary holds; the session has all of it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A session in numbers; the names are those of the columns.

    Attributes:
        id: the session's id; `group` is its group's id, `sample` its index in the group.
        attempt: how many earlier attempts at this sample failed by infrastructure.
        phase: train, eval, demo or greedy.
        step: how many of the run's steps were done when it began.
        environment: the name under which the environment was configured.
        task: the task's id.
        started: seconds since 1970.
        status: how it ended; OPEN while it is generated.
        blame: what failed: agent, infra, or None.
        error: the beginning of its error.
        reward: the final reward.
        score: the final reward and the step rewards; see `Session.score`.
        rewards: final rewards by name.
        ended: seconds since 1970.
        duration: seconds.
        nodes: of the tree.
        turns: assistant messages, over all branches.
        branches: leaves of the tree.
        tokens: of the tree, each shared token once.
        sampled_tokens: those that an engine sampled.
        trained_tokens: those that may be trained on.
        version_min: the oldest version of the run's own policy that sampled a token of it.
        version_max: the newest one.
        agents: whose turns it has.
        tool_calls: how many tool calls were run.
        tool_errors: how many of them failed.
    """

    id: str
    group: str
    group_number: int | None
    group_attempt: int
    sample: int
    attempt: int
    phase: str
    step: int | None
    environment: str
    task: str
    started: float | None
    status: Status
    blame: Blame | None
    error: str | None
    reward: float | None
    score: float | None
    rewards: dict[str, float]
    ended: float | None
    duration: float | None
    nodes: int
    turns: int
    branches: int
    tokens: int
    sampled_tokens: int
    trained_tokens: int
    version_min: int | None
    version_max: int | None
    agents: tuple[str, ...]
    tool_calls: int
    tool_errors: int


COLUMNS = tuple(column.name for column in fields(Summary))
PROGRESS = COLUMNS[COLUMNS.index("nodes") :]
"""The columns that change with every turn."""
BEGINNING = COLUMNS[: COLUMNS.index("status")]
"""The columns that a session begins with."""
SELECTED = ", ".join(f'"{name}"' for name in COLUMNS)

SCHEMA = """
CREATE TABLE summaries (
    session INTEGER PRIMARY KEY,
    id TEXT NOT NULL, "group" TEXT NOT NULL, group_number INTEGER, group_attempt INTEGER NOT NULL,
    sample INTEGER NOT NULL, attempt INTEGER NOT NULL, phase TEXT NOT NULL, step INTEGER, environment TEXT NOT NULL,
    task TEXT NOT NULL, started REAL, status TEXT NOT NULL, blame TEXT, error TEXT, reward REAL, score REAL,
    rewards TEXT NOT NULL, ended REAL, duration REAL, nodes INTEGER NOT NULL, turns INTEGER NOT NULL,
    branches INTEGER NOT NULL, tokens INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL,
    trained_tokens INTEGER NOT NULL, version_min INTEGER, version_max INTEGER, agents TEXT NOT NULL,
    tool_calls INTEGER NOT NULL, tool_errors INTEGER NOT NULL
);
CREATE INDEX summaries_by_group ON summaries ("group");
CREATE INDEX summaries_by_step ON summaries (phase, step);
CREATE INDEX summaries_by_status ON summaries (status);
CREATE INDEX summaries_by_score ON summaries (score);
CREATE INDEX summaries_by_duration ON summaries (duration);
"""

BLAME = {Status.AGENT_ERROR: Blame.AGENT, Status.INFRA_ERROR: Blame.INFRA}


@dataclass(slots=True)
class Totals:
    """Sums over a session's nodes, one node after the other."""

    nodes: int = 0
    turns: int = 0
    branches: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    version_min: int | None = None
    version_max: int | None = None
    agents: list[str] = field(default_factory=list)
    _parents: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Totals:
        """The sums over these nodes, in the order of their ids."""
        totals = cls()
        for node in nodes:
            totals.add(node)
        return totals

    def add(self, node: Node) -> None:
        """Add the session's next node."""
        self.nodes += 1
        self.tokens += tree.new_tokens(node)
        if node.parent is None or node.parent in self._parents:
            self.branches += 1
        else:
            self._parents.add(node.parent)
        if node.message.role == "assistant":
            self.turns += node.copy_of is None
            if node.agent not in self.agents:
                self.agents.append(node.agent)
        self.trained_tokens += node.trainable.count(True)
        if node.versions:
            self.sampled_tokens += len(node.token_ids) - node.versions[0].start
            for span in node.versions if node.policy in (None, MAIN) else ():
                if self.version_min is None or self.version_max is None:
                    self.version_min = self.version_max = span.version
                self.version_min, self.version_max = (
                    min(self.version_min, span.version),
                    max(self.version_max, span.version),
                )


def tool_calls(session: Session) -> tuple[int, int]:
    """Return how many tool calls were run, and how many of them failed."""
    return session.counters.get("tool_calls", 0), session.counters.get("tool_errors", 0)


def progress(totals: Totals, calls: tuple[int, int]) -> tuple[Any, ...]:
    """Return the values of `PROGRESS`; `calls` as of `tool_calls`."""
    return (
        totals.nodes,
        totals.turns,
        totals.branches,
        totals.tokens,
        totals.sampled_tokens,
        totals.trained_tokens,
        totals.version_min,
        totals.version_max,
        dumps(totals.agents),
        *calls,
    )


def values(session: Session, totals: Totals) -> tuple[Any, ...]:
    """Return the values of `COLUMNS`."""
    timed = session.started is not None and session.ended is not None
    seconds = max(session.ended - session.started, 0.0) if timed else None  # type: ignore[operator]  # a clock set back
    return (
        session.id,
        session.group,
        session.group_number,
        session.group_attempt,
        session.sample,
        session.attempt,
        session.phase,
        session.step,
        session.environment,
        safe_text(session.task.id),
        session.started,
        session.status.value,
        BLAME.get(session.status),
        None if session.error is None else safe_text(session.error[:ERROR_CHARS]),
        session.reward,
        None if session.status is Status.OPEN else session.score,
        dumps(session.rewards),
        session.ended,
        seconds,
        *progress(totals, tool_calls(session)),
    )


def summary_from(row: tuple[Any, ...]) -> Summary:
    """The summary of a row of `COLUMNS`."""
    data = dict(zip(COLUMNS, row, strict=True))
    data["status"], data["blame"] = Status(data["status"]), data["blame"] and Blame(data["blame"])
    data["rewards"], data["agents"] = orjson.loads(data["rewards"]), tuple(orjson.loads(data["agents"]))
    return Summary(**data)

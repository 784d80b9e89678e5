"""Finished sessions that another process holds: the run's process has their heads, and numbers instead of tokens.

What a step needs in order to choose groups, to log and to write its ledger are a session's rewards, its status and a
few numbers (`SessionFacts`), which whoever played the session computes. So a session costs the run's process the same
however long it is. Whatever else is asked of a `SessionRef` is read from the run's store: nothing is missing, and what
is seldom needed (transcripts, a filter of the user's that reads messages) costs time only where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import orjson

from agentrl.rollout.stream.usage import Usage, usage_of
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.codec import pack_floats, pack_ids
from agentrl.types import MAIN, Node, Session, Task

DEFERRED = ("nodes", "branches", "info")
"""The parts that grow with a session, or may: they stay in the store."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A session's size.

    Attributes:
        turns: assistant messages, without copies.
        tokens: of the tree, each shared one once.
        trainable: those that may be trained on.
        after_switch: those that a later policy version sampled than its turn's first ones.
        sampled: those that an engine sampled.
    """

    turns: int
    tokens: int
    trainable: int
    after_switch: int
    sampled: int


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Turns of a session that had tools on offer, their calls that could be read, and malformed ones."""

    turns: int
    good: int
    malformed: int


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The run's process's facts on a session's nodes.

    Attributes:
        score: `Session.score`.
        sizes: tokens and turns.
        versions: those of the trained policy that generated its tokens, in order.
        digest: of what training sees of it (`digest_of`).
        calls: of tools.
        usage: what an API counts.
    """

    score: float | None
    sizes: _Sizes
    versions: tuple[int, ...]
    digest: bytes
    calls: ToolCalls
    usage: Usage


class SessionRef(Session):
    """A session that is in the run's store; what is `DEFERRED` is read when it is asked for.

    A copy with other values (`dataclasses.replace`), and what is pickled of it, is whole.

    Attributes:
        facts: numbers of its nodes; None in a copy.
    """

    __slots__ = ("_load", "facts")
    facts: SessionFacts | None
    _load: Callable[[str], Session]

    @staticmethod
    def of(head: SessionHead, task: Task, load: Callable[[str], Session]) -> SessionRef:
        """The session of a head.

        Args:
            head: as its process sent it.
            task: its task, which that process was sent.
            load: reads a session by its id from the store.
        """
        held = SessionRef.__new__(SessionRef)
        held.facts, held._load, held.task = head.facts, load, task
        for name, value in head.values.items():
            setattr(held, name, value)
        return held

    def __getattr__(self, name: str) -> Any:
        if name == "facts":
            return None
        if name not in DEFERRED:
            raise AttributeError(name)
        stored = self._load(self.id)
        for each in DEFERRED:
            setattr(self, each, getattr(stored, each))
        return getattr(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, tuple(getattr(self, field.name) for field in fields(Session))

    @property
    def turns(self) -> int:
        return super().turns if self.facts is None else self.facts.sizes.turns

    @property
    def score(self) -> float | None:
        return super().score if self.facts is None else self.facts.score


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The part of a finished session that is sent to the run's process."""

    values: dict[str, Any]
    facts: SessionFacts

    @staticmethod
    def of(session: Session) -> SessionHead:
        """The head of a session."""
        left_out = (*DEFERRED, "task")
        values = {field.name: getattr(session, field.name) for field in fields(session) if field.name not in left_out}
        return SessionHead(
            values,
            SessionFacts(
                score=session.score,
                sizes=sizes_of(session),
                versions=versions_of(session),
                digest=digest_of(session),
                calls=calls_of(session),
                usage=usage_of(session),
            ),
        )


def hold(session: Session, load: Callable[[str], Session]) -> Session:
    """A stored session without what grows with it, which `load` reads from the store when it is asked for."""
    return session if is_head(session) else SessionRef.of(SessionHead.of(session), session.task, load)


def read_heads(store: Store, **filters: Any) -> Iterator[Session]:
    """The sessions that fit every filter (`query.Filters`), as `hold` leaves them; those of a group share its task."""
    tasks: dict[str, Task] = {}
    for session in store.sessions(**filters):
        task = tasks.setdefault(session.group, session.task)
        session.task = task if task == session.task else session.task
        yield hold(session, store.load)


def _facts(session: Session) -> SessionFacts | None:
    return session.facts if isinstance(session, SessionRef) else None


def sizes_of(session: Session) -> _Sizes:
    """Return a session's size."""
    if facts := _facts(session):
        return facts.sizes
    nodes, excluded = session.nodes, session.excluded_nodes()
    return _Sizes(
        turns=session.turns,
        tokens=sum(len(node.token_ids) for node in nodes),
        trainable=sum(sum(node.trainable) for node in nodes if node.id not in excluded),
        after_switch=sum(after_switch(node) for node in nodes),
        sampled=sum(map(sampled_tokens, nodes)),
    )


def is_head(session: Session) -> bool:
    """Return whether another process has a session's nodes."""
    return _facts(session) is not None


def versions_of(session: Session) -> tuple[int, ...]:
    """The versions of the trained policy that generated a session's tokens, in order."""
    if facts := _facts(session):
        return facts.versions
    return tuple(sorted({span.version for node in session.nodes if node.policy == MAIN for span in node.versions}))


def calls_of(session: Session) -> ToolCalls:
    """Return the results of a session's tool calls; none are counted where no tools were on offer."""
    if facts := _facts(session):
        return facts.calls
    if not any(node.tools for node in session.nodes):
        return ToolCalls(0, 0, 0)
    sampled = [node for node in session.nodes if node.sampled]
    calls = [call for node in sampled for call in node.message.tool_calls or ()]
    malformed = sum(call.error is not None for call in calls)
    return ToolCalls(len(sampled), len(calls) - malformed, malformed)


def usage(sessions: Iterable[Session]) -> Usage:
    """Return the tokens of all of the sessions, as an API counts them."""
    known = ((session, _facts(session)) for session in sessions)
    return sum((facts.usage if facts else usage_of(session) for session, facts in known), Usage())


def digest_of(session: Session) -> bytes:
    """A digest of what training sees of a session, 16 bytes.

    Token ids, which of them are trained, log-probabilities, versions, the tree's shape, rewards and status; the same
    for a session in memory and for one that a store returns.
    """
    if facts := _facts(session):
        return facts.digest
    digest = hashlib.blake2b(digest_size=16)
    for part in _content(session):
        digest.update(part)
    return digest.digest()


def content_hash(sessions: Iterable[Session]) -> str:
    """A digest of what training sees of sessions, from those of each (`digest_of`), 32 hexadecimal digits."""
    return hashlib.blake2b(b"".join(map(digest_of, sessions)), digest_size=16).hexdigest()


def has_content(sessions: Iterable[Session], found: str | None) -> bool:
    """Return whether sessions are those of a hash, `content_hash` or the one over all of their bytes of older runs."""
    sessions = list(sessions)
    if content_hash(sessions) == found:
        return True
    digest = hashlib.blake2b(digest_size=16)
    for part in (part for session in sessions for part in _content(session)):
        digest.update(part)
    return digest.hexdigest() == found


def _content(session: Session) -> Iterable[bytes]:
    yield orjson.dumps((session.id, session.status.value, session.reward, session.agent_rewards))
    if session.branches:
        yield orjson.dumps(session.branches)
    if session.excluded:
        yield orjson.dumps({"excluded": session.excluded})
    for node in session.nodes:
        spans = [(span.version, span.start, span.end) for span in node.versions]
        reward = None if node.reward is None else node.reward + 0.0
        yield orjson.dumps((node.id, node.parent, node.agent, sum(node.trainable), spans, reward))
        yield pack_ids(node.token_ids)
        yield pack_floats(node.logprobs) or b""


def sampled_tokens(node: Node) -> int:
    """Return how many of a node's tokens an engine sampled."""
    return sum(span.end - span.start for span in node.versions) if node.sampled else 0


def after_switch(node: Node) -> int:
    """Tokens of a turn that a later policy version sampled than its first ones.

    With `weights.mode=in_place` they were made with mixed caches: keys and values of the tokens before the switch
    are the older policy's. In every other mode those were recomputed.
    """
    first = node.versions[0].version if node.versions else None
    return sum(span.end - span.start for span in node.versions if span.version != first)

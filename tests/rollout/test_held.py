"""Sessions that another process holds: the run's process knows the same of them, without their tokens."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from agentrl.rollout.stream.batch_metrics import rollout_metrics
from agentrl.rollout.stream.outcomes import GroupOutcome
from agentrl.rollout.workers import held
from agentrl.rollout.workers.held import (
    SessionHead,
    SessionRef,
    content_hash,
    digest_of,
    has_content,
    sizes_of,
    versions_of,
)
from agentrl.sessions.store.store import Store
from agentrl.types import Group, Session, Status, Task
from tests.sessions.forests import sessions

pytestmark = pytest.mark.slow


def never(session_id: str) -> Session:
    raise AssertionError(f"session {session_id} was read from the store")


def sent(session: Session) -> SessionHead:
    """The head of a session, as it arrives in another process."""
    found: SessionHead = pickle.loads(pickle.dumps(SessionHead.of(session)))
    return found


def group_of(each: list[Session]) -> Group:
    return Group("train-0.0", Task(id="t"), each)


@given(sessions(), sessions())
def test_metrics_and_outcomes_of_heads_are_those_of_whole_sessions_and_nothing_is_read(
    one: Session, other: Session
) -> None:
    one.status, one.reward, other.status = Status.COMPLETED, 0.5, Status.TRUNCATED
    heads = [SessionRef.of(sent(each), each.task, never) for each in (one, other)]
    whole = [one, other]
    assert rollout_metrics([group_of(heads)]) == rollout_metrics([group_of(whole)])  # type: ignore[arg-type]
    assert GroupOutcome.of(group_of(heads), "trained") == GroupOutcome.of(group_of(whole), "trained")  # type: ignore[arg-type]
    for head, session in zip(heads, whole, strict=True):
        assert (head.turns, head.score) == (session.turns, session.score)
        assert (sizes_of(head), versions_of(head)) == (sizes_of(session), versions_of(session))
        assert (held.calls_of(head), held.usage([head])) == (held.calls_of(session), held.usage([session]))


@given(sessions())
def test_what_a_head_lacks_is_read_from_the_store_and_a_copy_is_whole(session: Session) -> None:
    with Store(":memory:") as store:
        store.save(session)
        head = SessionRef.of(sent(session), session.task, store.load)
        stored = store.load(session.id)
        assert [getattr(head, field.name) for field in fields(head)] == [
            getattr(stored, field.name) for field in fields(stored)
        ]
        head = SessionRef.of(sent(session), session.task, store.load)
        assert pickle.loads(pickle.dumps(head)) == stored
        changed = replace(head, reward=7.0)
        assert changed.score == replace(stored, reward=7.0).score
        assert changed.by_agent() == [changed]


def test_a_head_costs_the_same_however_long_its_session_is() -> None:
    def bytes_of(tokens: int) -> int:
        session = Session("s", Task(id="t"), status=Status.COMPLETED, reward=1.0)
        for number in range(8):
            session.nodes.append(node(number, tokens))
        return len(pickle.dumps(SessionHead.of(session)))

    assert bytes_of(4000) - bytes_of(4) < 40, "numbers of more digits"


def node(number: int, tokens: int) -> Any:
    from agentrl.types import Message, Node

    parent = number - 1 if number else None
    message = Message(role="user", content="word " * tokens)
    return Node(number, parent, message, [5] * tokens, [False] * tokens, [0.0] * tokens)


@given(sessions())
def test_the_hash_of_an_older_run_is_known_again(session: Session) -> None:
    whole = hashlib.blake2b(b"".join(held._content(session)), digest_size=16).hexdigest()
    assert has_content([session], whole)
    assert has_content([session], content_hash([session]))
    changed = replace(session, reward=(session.reward or 0.0) + 1.0)
    assert not has_content([changed], whole)
    assert digest_of(changed) != digest_of(session)


def test_a_session_that_the_store_lost_is_named(tmp_path: Path) -> None:
    session = Session("s", Task(id="t"), status=Status.COMPLETED)
    with Store(tmp_path / "sessions.db") as store:
        head = SessionRef.of(sent(session), session.task, store.load)
        with pytest.raises(Exception, match="session_id='s' is not in the store"):
            _ = head.nodes

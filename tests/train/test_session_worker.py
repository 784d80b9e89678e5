"""The process that holds a run's sessions: what it keeps, stores, and writes into the run's record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from agentrl.config import RunConfig
from agentrl.errors import StoreError
from agentrl.rollout.workers.held import digest_of
from agentrl.sessions.store.store import Store
from agentrl.train.driver.session_worker import PENDING, KeptSessions, LearnRequest, SessionRole
from agentrl.train.record import provenance
from agentrl.train.record.seals import LOSSES
from agentrl.types import FinishReason, Group, Message, Node, Sampling, Session, Status, Task, VersionSpan


def session(name: str = "train-0.0-0", tokens: int = 4) -> Session:
    message, spans = Message(role="assistant", content="yes"), [VersionSpan(3, 0, tokens)]
    turn = Node(
        0,
        None,
        message,
        [5] * tokens,
        [True] * tokens,
        [-0.5] * tokens,
        spans,
        Sampling(),
        FinishReason.STOP,
        policy="main",
    )
    return Session(name, Task(id="t"), group="train-0.0", phase="train", status=Status.COMPLETED, nodes=[turn])


def read(role: SessionRole, wanted: Session) -> list[Session]:
    """What a request for a session is trained on."""
    groups = [(Group("train-0.0", wanted.task), [(wanted.id, digest_of(wanted))])]
    request = LearnRequest(groups, 0, None, {})  # type: ignore[arg-type]
    [group] = role._read(request, {wanted.id: role._kept.take(wanted.id)})
    return group.sessions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Store(tmp_path / "sessions.db").close()
    return tmp_path


@pytest.fixture
async def role(folder: Path) -> AsyncIterator[SessionRole]:
    made = SessionRole(RunConfig.model_validate({"env": "calculator"}).learning("main"), folder)
    yield made
    made.close()


async def test_the_session_that_was_chosen_is_trained_on_and_not_another_one_of_its_id(
    role: SessionRole, folder: Path
) -> None:
    whole = session()
    await role.begin(replace(whole, nodes=[]), None)
    await role.end(whole)
    failed = replace(whole, status=Status.INFRA_ERROR, nodes=[])
    with Store(folder / "sessions.db") as store:  # the run's process: its worker died before it had answered
        store.save(failed, replace=True)
    assert read(role, failed) == [failed]
    with pytest.raises(StoreError, match="is not the one that is to be trained on"):
        read(role, whole)


async def test_a_session_is_trained_on_from_memory_once_and_from_the_store_after_that(role: SessionRole) -> None:
    whole = session()
    await role.begin(replace(whole, nodes=[]), None)
    await role.end(whole)
    first, second = read(role, whole), read(role, whole)
    assert first == second == [whole]
    assert (first[0] is whole, second[0] is whole) == (True, False)


async def test_turns_of_weights_that_were_lost_are_of_another_incarnation(role: SessionRole, folder: Path) -> None:
    (folder / LOSSES).write_bytes(orjson.dumps([2]))
    whole = session()
    await role.begin(replace(whole, nodes=[]), None)
    await role.end(whole)
    assert [span.incarnation for span in role._store.load(whole.id).nodes[0].versions] == [1]


async def test_what_a_worker_recorded_before_it_was_lost_is_not_recorded_again(role: SessionRole, folder: Path) -> None:
    line = provenance.lines(1, [provenance.Trained(0, {}, {}, "f", {})])
    (folder / PENDING).write_bytes(line)
    role.record()
    (folder / PENDING).write_bytes(line)  # it died before it could remove the file
    role.record()
    role.record()
    assert (folder / provenance.NAME).read_bytes() == line


async def test_digests_of_what_it_holds_are_those_of_the_store(role: SessionRole, folder: Path) -> None:
    whole = session()
    await role.begin(replace(whole, nodes=[]), None)
    await role.end(whole)
    with Store(folder / "sessions.db", read_only=True) as store:
        assert await role.digests({"id": whole.id}) == store.digests() != {}


def kept(sizes: list[int], limit: int) -> Iterator[int]:
    found = KeptSessions(limit)
    for number, size in enumerate(sizes):
        found.add(session(str(number), size))
    return (number for number in range(len(sizes)) if found.take(str(number)) is not None)


@pytest.mark.slow
def test_the_newest_sessions_are_kept_up_to_so_many_tokens() -> None:
    assert list(kept([4, 4, 4], 8)) == [1, 2]
    assert list(kept([4, 9, 4], 8)) == [2]
    assert list(kept([1, 1, 1], 8)) == [0, 1, 2]

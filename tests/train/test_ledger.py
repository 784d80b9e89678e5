"""The ledger of a run's groups, and what its check finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest

from agentrl.rollout.stream.outcomes import REPLAYED, STALE, TRAINED
from agentrl.rollout.workers.held import content_hash
from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from agentrl.train.record.files import keep_lines
from agentrl.train.record.ledger import Entry
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.state import STATE, last_attempts
from agentrl.types import Session
from tests.rollout.test_stream import World, stream

STEPS = 4


def run(path: Path) -> Path:
    """A run of the stream alone, whose checkpoint is one step behind its ledger, and which discards groups."""

    async def play(folder: RunFolder, store: Store) -> None:
        async def keep(session: Session) -> None:
            store.save(session)

        async with stream(STEPS + 2, 2, 1, keep, order="ready") as groups:
            World.slow = groups.tasks.take(1, 1)[0].id
            for step in range(1, STEPS + 1):
                batch = await groups.take(2)
                if step == 2:
                    groups.drop(batch[:1], "dropped")
                    batch = batch[1:]
                groups.published(batch)
                folder.log(step, {}, groups.take_outcomes())
                if step == STEPS - 1:
                    state = orjson.dumps({"stream": groups.state()})
                    folder.save_checkpoint(step, partial(_write, state=state), keep=1)

    folder = RunFolder(path)
    with Store(path / "sessions.db") as store:
        asyncio.run(play(folder, store))
    folder.close()
    return path


def _write(folder: Path, state: bytes) -> None:
    (folder / STATE).write_bytes(state)
    (folder / "trainer").touch()


@pytest.mark.slow
def test_a_ledger_has_each_group_with_its_outcome_and_is_in_order(tmp_path: Path) -> None:
    path = run(tmp_path)
    found = ledger.read(path)
    assert {entry.outcome.outcome for entry in found} == {TRAINED, STALE, "dropped"}
    assert [entry.step for entry in found if entry.outcome.outcome == TRAINED] == [1, 1, 2, 3, 3, 4, 4]
    assert all(entry.outcome.hash for entry in found if entry.outcome.outcome != STALE)
    assert list(ledger.faults(path)) == []


def without(which: Callable[[Entry], bool]) -> Callable[[Sequence[Entry]], list[Entry]]:
    return lambda entries: [entry for entry in entries if not which(entry)]


def twice(entries: Sequence[Entry]) -> list[Entry]:
    return [*entries, replace(entries[0], step=STEPS)]


def kept(entries: Sequence[Entry]) -> list[Entry]:
    return [
        replace(entry, outcome=replace(entry.outcome, outcome="dropped")) if entry.outcome.outcome == STALE else entry
        for entry in entries
    ]


def other_tokens(entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entries[0], outcome=replace(entries[0].outcome, hash="00")), *entries[1:]]


def replayed(entries: Sequence[Entry]) -> list[Entry]:
    return [replace(entries[0], outcome=replace(entries[0].outcome, outcome=REPLAYED)), *entries]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (replayed, "was replayed in step 1, before it was trained"),
        (without(lambda entry: entry.step == 2 and entry.outcome.outcome == TRAINED), "neither trained, discarded nor"),
        (twice, "must be 0, 1, 2"),
        (kept, "and step-000003 would train it again"),
        (without(lambda entry: entry.outcome.outcome == STALE), "as attempt 1, not 0"),
        (other_tokens, "of which the store has other sessions"),
    ],
)
def test_what_is_wrong_with_a_ledger_is_found(
    change: Callable[[Sequence[Entry]], list[Entry]], words: str, tmp_path: Path
) -> None:
    path = run(tmp_path)
    (path / ledger.NAME).write_bytes(b"".join(entry.line() for entry in change(ledger.read(path))))
    assert any(words in fault for fault in ledger.faults(path)), list(ledger.faults(path))


@pytest.mark.slow
def test_a_resumed_run_drops_the_lines_beyond_its_checkpoint_and_a_torn_last_line(tmp_path: Path) -> None:
    path = run(tmp_path)
    with (path / ledger.NAME).open("ab") as file:
        file.write(b'{"step": 5, "gro')
    keep_lines(path / ledger.NAME, 2)
    assert {entry.step for entry in ledger.read(path)} == {1, 2}


@pytest.mark.slow
def test_the_hash_of_a_groups_content_is_the_same_in_the_store_and_changes_with_a_reward(tmp_path: Path) -> None:
    path = run(tmp_path)
    entry = next(entry for entry in ledger.read(path) if entry.outcome.outcome == TRAINED)
    with Store(path / "sessions.db", read_only=True) as store:
        sessions = last_attempts(store, entry.outcome.group)
    assert content_hash(sessions) == entry.outcome.hash
    sessions[0].nodes[-1].reward = 0.25
    assert content_hash(sessions) != entry.outcome.hash

"""Notes and tags that people give to runs and sessions."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import InvalidInput, StoreError
from agentrl.viewer.listing import Order, filters, matching
from agentrl.viewer.notes import RUN, STORE, NoteChange, Notes, TaggedNote
from agentrl.viewer.replay_process import Replays
from tests.viewer.recorded import HOSTILE, write_run
from tests.viewer.test_app import asked, client

OWN = {"origin": "http://127.0.0.1"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", steps=2)


async def put(run: Path, change: dict[str, Any], **of: str) -> Any:
    async with client(run, replays=Replays()) as viewer:
        return await viewer.post("/api/note", params={"run": "run", **of}, json=change, headers=OWN)


@pytest.mark.slow
async def test_a_note_with_tags_is_shown_with_its_session_in_the_list_and_found_by_tag(run: Path) -> None:
    answer = await put(run, {"text": "odd", "tags": ["bug", " to read ", "bug"]}, id="train-1.0-2")
    assert answer.json() == {"text": "odd", "tags": ["bug", "to read"], "version": 1}
    await put(run, {"tags": ["bug"]}, id="train-0.0-0")
    assert (await asked(run, "session", run="run", id="train-1.0-2"))["note"]["text"] == "odd"
    assert (await asked(run, "facets", run="run"))["tag"] == {"bug": 2, "to read": 1}
    found = await asked(run, "sessions", run="run", tag="bug")
    assert {row["id"]: row["note"]["tags"] for row in found["rows"]} == {
        "train-1.0-2": ["bug", "to read"],
        "train-0.0-0": ["bug"],
    }
    assert (found["total"], (await asked(run, "sessions", run="run", tag="none"))["total"]) == (2, 0)
    both = await asked(run, "sessions", run="run", tag=["none", "to read"], id="train-1.0-2")
    assert [row["id"] for row in both["rows"]] == ["train-1.0-2"]
    assert (await asked(run, "sessions", run="run", tag="bug", id="train-1.0-1"))["rows"] == []
    wanted = filters(run / "sessions.db", ["tag=to read"])
    assert [row.id for row in matching(run / "sessions.db", wanted, Order())] == ["train-1.0-2"]


async def test_a_run_has_a_note_of_its_own_which_is_no_sessions(run: Path) -> None:
    await put(run, {"text": "the good one", "tags": ["paper"]})
    (listed,) = (await asked(run, "runs"))["runs"]
    assert listed["note"] == {"text": "the good one", "tags": ["paper"], "version": 1}
    assert (await asked(run, "facets", run="run"))["tag"] == {}
    assert (await asked(run, "sessions", run="run", tag="paper"))["rows"] == []


async def test_what_is_written_into_a_note_comes_back_as_the_same_text(run: Path) -> None:
    for text in (HOSTILE, "'; DROP TABLE notes; --", "ü" * 10_000):
        before = (await asked(run, "session", run="run", id="train-0.0-0"))["note"]["version"]
        answer = await put(run, {"text": text, "tags": [text[:40]], "version": before}, id="train-0.0-0")
        found = (await asked(run, "session", run="run", id="train-0.0-0"))["note"]
        assert found == answer.json()
        assert found["text"] == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "x" * 10_001}, "text"),
        ({"tags": ["x" * 41]}, "tags"),
        ({"tags": [" "]}, "tags"),
        ({"tags": [str(number) for number in range(21)]}, "tags"),
        ({"words": "x"}, "words"),
        ({"version": 4}, "somebody else"),
    ],
)
@pytest.mark.slow
async def test_a_change_that_makes_no_sense_is_refused_and_changes_nothing(
    run: Path, change: dict[str, Any], said: str
) -> None:
    answer = await put(run, change, id="train-0.0-0")
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert Notes(run).of(["train-0.0-0"]) == {}


async def test_a_session_that_is_not_there_gets_no_note_and_a_viewer_that_only_reads_writes_none(run: Path) -> None:
    assert (await put(run, {"text": "x"}, id="none")).status_code == 400
    async with client(run) as viewer:
        answer = await viewer.post("/api/note", params={"run": "run"}, json={"text": "x"}, headers=OWN)
        assert answer.status_code == 404
    assert not (run / STORE).exists()


@pytest.mark.slow
def test_of_two_viewers_that_change_a_note_at_once_one_is_told_and_no_change_is_lost(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        told = pool.starmap(_append, [(tmp_path, "a", 10), (tmp_path, "b", 10)])
    note = Notes(tmp_path).of([RUN])[RUN]
    assert (note.text.count("a"), note.text.count("b"), note.version) == (10, 10, 20)
    assert sum(told) >= 0


def _append(run: Path, letter: str, times: int) -> int:
    """Append a letter so many times, reading the note again where it was changed meanwhile; how often that was."""
    told = 0
    while times:
        note = Notes(run).of([RUN]).get(RUN, TaggedNote())
        try:
            Notes(run).put(RUN, NoteChange(text=note.text + letter, version=note.version))
            times -= 1
        except InvalidInput:
            told += 1
    return told


@pytest.mark.slow
def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / STORE).write_bytes(os.urandom(5000))
    before = (tmp_path / STORE).read_bytes()
    with pytest.raises(StoreError, match=r"notes\.db"):
        Notes(tmp_path).of([RUN])
    with pytest.raises(StoreError, match=r"notes\.db"):
        Notes(tmp_path).put(RUN, NoteChange(text="x"))
    assert (tmp_path / STORE).read_bytes() == before

"""What older versions of agentrl wrote can be opened, resumed, verified, looked at and exported by this one."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import agentrl
from agentrl.cli import app
from agentrl.common import formats
from agentrl.errors import ConfigError, NewerFormat
from agentrl.rollout.stream.outcomes import TRAINED
from agentrl.sessions.store import export, salvage
from agentrl.sessions.store.store import Store
from agentrl.train.driver.resuming import read_settings, whole_checkpoints
from agentrl.train.record import ledger, manifest, trainer_logprobs
from agentrl.train.record.remote_copy import fetch
from agentrl.train.record.verify import verify
from agentrl.viewer.app import create_app
from agentrl.viewer.notes import NoteChange, Notes
from tests.records import digits  # noqa: F401  (registers the environment of the recorded runs)
from tests.sessions.exported import from_jsonl

HERE = Path(__file__).parent
RECORDS = [
    (commit.name, file.name.removesuffix(".tar.xz")) for commit in HERE.iterdir() for file in commit.glob("*.xz")
]
TRAININGS = [record for record in RECORDS if record[1] != "eval"]


def unpacked(commit: str, name: str, folder: Path) -> Path:
    """A recorded run's folder."""
    with tarfile.open(HERE / commit / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder / name


def contents(folder: Path) -> dict[str, bytes]:
    """All files."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def faults(run: Path) -> list[str]:
    return [f"{check.name}: {fault}" for check in verify(run).checks for fault in check.faults]


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
@pytest.mark.parametrize(("commit", "name"), TRAININGS)
def test_a_recorded_run_is_resumed_for_further_steps_and_verifies_before_and_after(
    commit: str, name: str, tmp_path: Path
) -> None:
    run = unpacked(commit, name, tmp_path)
    before = dict(enumerate(metrics(run), 1))
    assert not faults(run)
    steps = max(len(before) + 1, read_settings(run)["steps"])
    result = agentrl.train(resume=str(run), steps=steps)
    assert [row["step"] for row in result.metrics] == list(range(1, steps + 1))
    assert result.checkpoint.name == f"step-{steps:06d}"
    kept = int(whole_checkpoints(unpacked(commit, name, tmp_path / "again"))[-1].name.removeprefix("step-"))
    for step in range(1, kept + 1):
        assert metrics(run)[step - 1] == before[step]
    assert {entry.step for entry in ledger.read(run) if entry.outcome.outcome == TRAINED} == set(range(1, steps + 1))
    assert not faults(run)
    assert formats.check_run(run) == formats.RUN.number


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("commit", "name"), RECORDS)
def test_a_recorded_run_has_the_first_format_and_every_page_of_the_viewer(
    commit: str, name: str, tmp_path: Path
) -> None:
    run = unpacked(commit, name, tmp_path)
    assert formats.check_run(run) >= 1
    page = TestClient(create_app(tmp_path), base_url="http://localhost")
    (listed,) = get(page, "/api/runs")["runs"]
    assert listed["state"] in ("finished", "killed", "stopped")
    assert (listed["kind"], listed["environment"]) == ("evaluation" if name == "eval" else "training", "digits")
    assert get(page, "/api/run", run=name)["settings"]["env.name"] == "digits"
    for api in ("series", "facets", "timeline"):
        assert get(page, f"/api/{api}", run=name)
    found = get(page, "/api/sessions", run=name, limit=200)["rows"]
    with Store(run / "sessions.db", read_only=True) as store:
        assert {each["id"] for each in found} == set(store.ids())
    for each in found:
        assert get(page, "/api/session", run=name, id=each["id"])
        for api in ("messages", "tokens"):
            assert get(page, f"/api/{api}", run=name, id=each["id"], node=0)


def get(page: TestClient, path: str, **query: Any) -> Any:
    answer: httpx.Response = page.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
@pytest.mark.parametrize(("commit", "name"), RECORDS)
def test_the_sessions_of_a_recorded_run_are_whole_and_are_exported_and_read_back(
    commit: str, name: str, tmp_path: Path
) -> None:
    run = unpacked(commit, name, tmp_path)
    report = salvage.check(run / "sessions.db")
    assert report.ok
    assert report.undamaged
    with Store(run / "sessions.db", read_only=True) as store:
        sessions = list(store.sessions())
    assert export.to_jsonl(sessions, tmp_path / "sessions.jsonl") == len(sessions)
    assert list(from_jsonl(tmp_path / "sessions.jsonl")) == sessions
    assert all(session.environment == "digits" for session in sessions)


# ------------------------------------------------------------------------------------ newer formats


def newer(folder: Path, name: str) -> None:
    """Give a JSON file the number of a format that nobody knows yet."""
    whole = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps({**whole, "format": 99, "agentrl": "7.8.9"}))


def newer_database(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute(formats.ABOUT)
        db.execute("DELETE FROM about")
        db.execute("INSERT INTO about VALUES ('7.8.9')")
        db.execute("PRAGMA user_version = 99")
        db.commit()


def run(folder: Path) -> None:
    newer(folder, formats.NAME)


def checkpoint(folder: Path) -> None:
    newer(folder / "checkpoints" / "step-000002", "run.json")


def manifest_(folder: Path) -> None:
    newer(folder / "checkpoints" / "step-000002", manifest.NAME)


def store(folder: Path) -> None:
    newer_database(folder / "sessions.db")


def notes(folder: Path) -> None:
    Notes(folder).put("", NoteChange(text="a note"))
    newer_database(folder / "notes.db")


def logprobs(folder: Path) -> None:
    trainer_logprobs.write(folder, 1, 0, {("s", 1): [-1.0]})
    newer_database(folder / trainer_logprobs.NAME)


def resume(folder: Path) -> None:
    agentrl.train(resume=str(folder), steps=3)


def rerun(folder: Path) -> None:
    agentrl.train(rerun=str(folder), run_dir=str(folder.parent / "other"))


def command(*words: str) -> Callable[[Path], None]:
    """An `agentrl` command on the folder."""

    def use(folder: Path) -> None:
        ended = CliRunner().invoke(app, [word.format(folder) for word in words])
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception

    return use


READERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "a run that is resumed": (run, resume),
    "a run that is run again": (run, rerun),
    "a run that is verified": (run, command("verify", "{}")),
    "a run that is replayed": (run, command("replay", "{}/train-0.0-0", "turn=1")),
    "a run that is followed": (run, command("top", "{}")),
    "a run that is reported": (run, command("report", "{}")),
    "runs that are compared": (run, command("diff", "{}", "{}")),
    "the ratings of a run": (run, command("ratings", "{}")),
    "a checkpoint that is resumed from": (checkpoint, resume),
    "a checkpoint that is verified": (checkpoint, command("verify", "{}")),
    "a manifest that is resumed from": (manifest_, resume),
    "a manifest that is verified": (manifest_, command("verify", "{}")),
    "a store that is resumed": (store, lambda folder: Store(folder / "sessions.db")),
    "a store that is read": (store, lambda folder: Store(folder / "sessions.db", read_only=True)),
    "a store that is listed": (store, command("sessions", "{}")),
    "a store that is checked": (store, command("sessions", "{}", "--check")),
    "notes that are read": (notes, lambda folder: Notes(folder).one()),
    "notes that are written": (notes, lambda folder: Notes(folder).put("", NoteChange(text="b", version=1))),
    "log-probabilities that are read": (logprobs, lambda folder: trainer_logprobs.last_of(folder, "s", 1)),
    "log-probabilities that are dropped": (logprobs, lambda folder: trainer_logprobs.drop_after(folder, 0)),
}


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
@pytest.mark.parametrize("case", READERS)
def test_a_newer_format_is_refused_by_the_version_that_is_needed_and_nothing_changes(case: str, tmp_path: Path) -> None:
    folder = unpacked("63b9345", "sync", tmp_path)
    (folder / "run.lock").touch()
    change, read = READERS[case]
    change(folder)
    before = contents(folder)
    with pytest.raises(NewerFormat, match=r"has format 99.*use agentrl 7\.8\.9 or later"):
        read(folder)
    assert contents(folder) == before
    assert not (tmp_path / "other").exists()


def test_a_store_whose_newer_number_is_in_its_log_alone_is_refused_and_keeps_the_log(tmp_path: Path) -> None:
    """A writer that closed it would have written the log into the file."""
    with Store(tmp_path / "s.db"):
        pass
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("PRAGMA user_version = 99")
    log = (tmp_path / "s.db-wal").read_bytes()
    assert log
    try:
        with pytest.raises(NewerFormat, match="format 99"):
            Store(tmp_path / "s.db")
        assert (tmp_path / "s.db-wal").read_bytes() == log
    finally:
        db.close()


def test_the_viewer_lists_a_newer_run_with_the_version_that_it_needs_beside_the_others(tmp_path: Path) -> None:
    unpacked("63b9345", "sync", tmp_path)
    newer(unpacked("63b9345", "async", tmp_path), formats.NAME)
    page = TestClient(create_app(tmp_path), base_url="http://localhost")
    listed = {each["name"]: each for each in get(page, "/api/runs")["runs"]}
    answer = page.get("/api/run", params={"run": "async"})
    assert listed["sync"]["state"] == "finished"
    assert listed["async"]["state"] == "newer"
    assert "agentrl 7.8.9" in listed["async"]["environment"]
    assert answer.status_code == 400
    assert "agentrl 7.8.9" in answer.json()["error"]


def test_a_copy_in_object_storage_of_a_newer_format_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    newer(tmp_path / "copy", "step-000002.json")
    with pytest.raises(NewerFormat, match=r"agentrl 7\.8\.9"):
        fetch(f"file://{tmp_path}/copy", tmp_path / "run", print)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"no JSON", b"[]", b'{"format": "two"}', b'{"format": 0}', b'{"format": true}'])
def test_a_damaged_number_is_said_to_be_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / formats.NAME).write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        formats.check_run(tmp_path)


@pytest.mark.slow
def test_the_records_are_small() -> None:
    assert sum(file.stat().st_size for file in HERE.rglob("*.tar.xz")) < 300_000 * len(
        {commit for commit, _ in RECORDS}
    )

"""Damage to a store is reported, and its undamaged sessions can be saved."""

from __future__ import annotations

import logging
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.errors import InvalidInput, StoreError
from agentrl.sessions.store import salvage
from agentrl.sessions.store.integrity import checksum
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.writing import Saving
from agentrl.types import Session, Task
from tests.sessions.test_store import small

SESSIONS = 40
FRAME = 4096 + 24


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Session]]:
    """A store as a killed process leaves it, its log not yet in the main file; and what was saved."""
    folder = tmp_path_factory.mktemp("store")
    saved = {f"s{number:02}": small(f"s{number:02}", nodes=3, info={"text": "x" * 900}) for number in range(SESSIONS)}
    with Store(folder / "live.db") as store:
        for session in saved.values():
            session.nodes[0].message.content = f"{session.id} " * 200
            store.save(session)
        for ending in ("", "-wal", "-count"):
            shutil.copy(f"{store.path}{ending}", f"{folder / 'sessions.db'}{ending}")
    return folder / "sessions.db", saved


def copy(source: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("", "-wal", "-count"):
        shutil.copy(f"{source}{ending}", f"{folder / 'sessions.db'}{ending}")
    return folder / "sessions.db"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_whole_store_is_found_whole_and_is_not_touched(
    written: tuple[Path, dict[str, Session]], tmp_path: Path
) -> None:
    path = copy(written[0], tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    report = salvage.check(path)
    assert report.ok, report.lines()
    assert report.undamaged == sorted(written[1])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_flipped_log_is_reported_at_the_next_opening_and_keeps_what_it_was(
    written: tuple[Path, dict[str, Session]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy(written[0], tmp_path)
    log = Path(f"{path}-wal")
    flip(log, log.stat().st_size // 2)
    with caplog.at_level(logging.WARNING), Store(path) as store:
        assert 0 < len(store.ids()) < SESSIONS, "SQLite forgot what came after"
        store.save(small("later"))
    assert "was damaged" in caplog.text
    assert f"and had {SESSIONS}" in caplog.text
    kept = path.with_name("sessions.db.damaged1")
    report = salvage.check(kept)
    assert not report.ok
    assert len(report.undamaged) >= SESSIONS - 3, report.lines()
    caplog.clear()
    with Store(path):
        pass
    assert "damaged" not in caplog.text, "it is told once"


def test_a_log_that_was_cut_is_reported(
    written: tuple[Path, dict[str, Session]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy(written[0], tmp_path)
    log = Path(f"{path}-wal")
    with log.open("r+b") as file:
        file.truncate(32 + FRAME * ((log.stat().st_size - 32) // FRAME // 2))
    report = salvage.check(path)
    assert report.lost > 0
    assert any("commits are missing" in fault for fault in report.faults)
    with caplog.at_level(logging.WARNING), Store(path):
        pass
    assert "was damaged" in caplog.text


@pytest.mark.parametrize("part", ["main file", "log"])
@settings(max_examples=6, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True))
@pytest.mark.slow
def test_wherever_a_bit_flips_no_wrong_session_is_read_and_few_are_lost(
    part: str,
    place: float,
    written: tuple[Path, dict[str, Session]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    path = copy(written[0], folder)
    if part == "main file":
        Store(path).close()  # which moves the log into it
    damaged = path if part == "main file" else Path(f"{path}-wal")
    flip(damaged, int(place * damaged.stat().st_size))
    report = salvage.check(path, folder / "saved.db")
    if report.undamaged:
        with Store(folder / "saved.db") as saved:
            assert saved.ids() == sorted(report.undamaged)
            for session in saved.sessions():
                assert session == written[1][session.id]
    if len(report.undamaged) < SESSIONS:
        assert not report.ok
    shutil.rmtree(folder)


def test_a_flipped_bit_in_a_row_is_no_session_but_a_named_failure(
    written: tuple[Path, dict[str, Session]], tmp_path: Path
) -> None:
    path = copy(written[0], tmp_path)
    Store(path).close()
    data = path.read_bytes()
    assert data.count(b"s05 " * 200) >= 1
    path.write_bytes(
        data.replace(b"s05 " * 200, b"s05 " * 150 + b"s04 " + b"s05 " * 49)
    )  # stale copies of the page too
    with Store(path) as store:
        with pytest.raises(StoreError, match=r"'s05'.*node 0.*checksum"):
            store.load("s05")
        assert store.load("s06") == written[1]["s06"]


def test_a_main_file_that_was_cut_gives_back_what_is_before_the_cut(
    written: tuple[Path, dict[str, Session]], tmp_path: Path
) -> None:
    path = copy(written[0], tmp_path)
    Store(path).close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 3 // 4)
    report = salvage.check(path, tmp_path / "saved.db")
    assert 0 < len(report.undamaged) < SESSIONS, report.lines()
    assert any("truncated" in fault for fault in report.faults)
    assert len(report.undamaged) + len(report.damaged) + report.lost >= SESSIONS


@pytest.mark.slow
def test_the_command_line_checks_and_salvages(written: tuple[Path, dict[str, Session]], tmp_path: Path) -> None:
    path = copy(written[0], tmp_path)
    run = CliRunner().invoke
    assert run(app, ["sessions", str(tmp_path), "--check"]).exit_code == 0
    Path(f"{path}-wal").write_bytes(Path(f"{path}-wal").read_bytes()[:-FRAME])
    done = run(app, ["sessions", str(path), "--salvage", str(tmp_path / "new.db")])
    assert done.exit_code == 1
    assert f"sessions are in {tmp_path / 'new.db'}" in done.output
    assert run(app, ["sessions", str(tmp_path / "new.db"), "--check"]).exit_code == 0
    listed = run(app, ["sessions", str(tmp_path / "new.db")])
    assert "sessions: " in listed.output
    for words in (["sessions", str(tmp_path / "none.db")], ["sessions", str(tmp_path / "none.db"), "--check"]):
        failed = run(app, words)
        assert "no such file" in str(failed.exception)


def test_salvage_never_writes_over_anything(written: tuple[Path, dict[str, Session]], tmp_path: Path) -> None:
    path = copy(written[0], tmp_path)
    with pytest.raises(InvalidInput, match="exists"):
        salvage.check(path, path)
    (tmp_path / "text").write_text("no database")
    assert "first bytes" in salvage.check(tmp_path / "text").lines()[1]


@pytest.mark.slow
@given(
    st.lists(
        st.none() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text() | st.binary(), max_size=6
    ),
    st.integers(0, 5),
)
def test_a_checksum_sees_a_changed_value_and_where_it_stands(row: list[object], at: int) -> None:
    if at < len(row):
        assert checksum([*row[:at], "other", *row[at + 1 :]]) != checksum(row) or row[at] == "other"
    assert checksum([*row, None]) != checksum(row)


def test_a_check_of_a_large_store_takes_no_memory_for_its_file(tmp_path: Path) -> None:
    """All of the file was read at once, and stores have many gigabytes."""
    path = tmp_path / "s.db"
    with Store(path) as store:
        session = Session("s", Task(id="t", data={"text": "x" * 8_000_000}))
        store.save(session)
        session.task = Task(id="t")  # its pages stay in the file, and have nothing
        store.save(session)
    size = path.stat().st_size
    tracemalloc.start()
    report = salvage.check(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.ok
    assert size > 8_000_000
    assert peak < size / 4


def test_a_whole_store_is_checked_where_it_lies_also_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores have many gigabytes, and each check copied all of one."""
    monkeypatch.setattr(salvage, "copy_files", None)
    inspect = salvage._inspect
    with Store(tmp_path / "s.db") as store:
        store.save_all([Saving(small("a")), Saving(small("b"))])

        def written_meanwhile(*given: Any) -> Any:
            found = inspect(*given)
            yield next(found)
            store.save(small("c"))
            yield from found

        monkeypatch.setattr(salvage, "_inspect", written_meanwhile)
        report = salvage.check(tmp_path / "s.db", tmp_path / "new.db")
    assert (report.ok, report.undamaged) == (True, ["a", "b"]), report.lines()
    assert (tmp_path / "new.db").is_file()

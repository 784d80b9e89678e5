"""Folders for weights do not outlive their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agentrl.common.scratch import PREFIX, ScratchFolder, remove_abandoned

HOLD = (
    "import sys, time; from agentrl.common.scratch import ScratchFolder; "
    "f = ScratchFolder(); print(f.path, flush=True); {}"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.mark.slow
def test_a_killed_processes_folder_is_removed_by_the_next_and_a_living_ones_stays() -> None:
    command = [sys.executable, "-c", HOLD.format("(f.path / 'weights').write_bytes(b'x' * 9); time.sleep(600)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        try:
            with ScratchFolder() as own:
                assert theirs.exists()
            assert not own.exists()
        finally:
            other.send_signal(signal.SIGKILL)
    assert theirs.exists()
    with ScratchFolder() as own:
        assert not theirs.exists()
        remove_abandoned()
        assert own.exists()


def test_what_is_not_known_to_be_abandoned_is_left_alone(temporary: Path) -> None:
    plain, target = temporary / f"{PREFIX}without-a-lock", temporary / "target"
    for folder in (plain, target):
        folder.mkdir()
    (target / ".lock").touch()
    os.symlink(target, temporary / f"{PREFIX}link")
    (temporary / f"{PREFIX}file").touch()
    remove_abandoned()
    assert plain.exists()
    assert target.exists()
    assert (temporary / f"{PREFIX}file").exists()


@pytest.mark.slow
def test_closing_twice_is_closing_once() -> None:
    folder = ScratchFolder()
    folder.close()
    folder.close()
    assert not folder.path.exists()

"""What a run goes on from when something has happened to it, and who may."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.overrides import merge_settings, validate
from agentrl.train.driver.resuming import saved_settings
from agentrl.train.driver.setup import complete
from agentrl.train.record import lock, manifest, records
from agentrl.train.record.run_folder import RunFolder

WORDS = ["env=calculator", "env.max_steps=2", "engine=vllm", "steps=9", "seed=3"]


def settings(*words: str) -> RunConfig:
    return validate(merge_settings([*WORDS, *words]), RunConfig)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints after steps 2, 4 and 6 and metrics up to step 7."""
    path = tmp_path / "run"
    folder = RunFolder.create(path, settings())
    for step in range(1, 8):
        folder.log(step, {"reward/mean": float(step)})
        if step % 2 == 0:
            folder.save_checkpoint(step, write, keep=3)
    folder.close()
    for name in records.HELD:
        (path / name).touch()
    return path


def write(path: Path) -> None:
    (path / "model.safetensors").write_bytes(os.urandom(3000))
    (path / "trainer").mkdir()
    (path / "trainer" / "state").write_bytes(os.urandom(5000))


def resume(run: Path, *words: str) -> tuple[Path | None, str]:
    """What a resumed run goes on from, and what is said."""
    said: list[str] = []
    folder = RunFolder.open(run, complete(merge_settings([f"resume={run}", *words])), said.append)
    folder.close()
    return folder.checkpoint, "\n".join(said)


def test_a_run_goes_on_from_its_newest_checkpoint_and_says_which_steps_are_taken_again(run: Path) -> None:
    checkpoint, said = resume(run)
    assert checkpoint == run / "checkpoints" / "step-000006"
    assert said.splitlines()[-1] == "steps 7 to 7 come after the newest checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("began", "words", "jump"),
    [
        ("linear", "steps=18", "from 0.000444 in step 6 to 0.000667 in step 7: steps=18 (was 9)"),
        ("cosine", "steps=18", "from 0.000413 in step 6 to 0.00075 in step 7: steps=18 (was 9)"),
        ("linear", "steps=7", "from 0.000444 in step 6 to 0.000143 in step 7: steps=7 (was 9)"),
        ("constant", "algo.schedule=linear", "from 0.001 in step 6 to 0.000333 in step 7: algo.schedule=linear (was"),
        ("linear", "algo.warmup_steps=8", "from 0.000444 in step 6 to 0.000778 in step 7: algo.warmup_steps=8 (was 0)"),
    ],
)
def test_a_learning_rate_that_jumps_where_a_run_is_extended_is_told_with_the_choice(
    began: str, words: str, jump: str, run: Path
) -> None:
    shutil.rmtree(run)
    path = run.with_name("scheduled")
    folder = RunFolder.create(path, settings("algo.lr=1e-3", f"algo.schedule={began}"))
    for step in range(1, 7):
        folder.log(step, {})
    folder.save_checkpoint(6, write, keep=1)
    folder.close()
    for name in records.HELD:
        (path / name).touch()
    assert "learning rate" not in resume(path)[1]
    assert "learning rate" not in resume(path, "steps=9", "algo.lr=5e-4")[1], "it was asked for"
    _, said = resume(path, words)
    assert f"warning: the learning rate jumps {jump}" in said
    last = said.partition(" in step 6")[0].rpartition(" ")[2]
    choice = f"algo.schedule=constant algo.lr={last}"
    assert f"{choice} goes on without a jump" in said
    assert "jumps" not in resume(path, "steps=18", *choice.split())[1]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("model.safetensors", cut, "model.safetensors has 100 bytes, not 3,000"),
        ("model.safetensors", flip, "model.safetensors has changed since it was written"),
        ("model.safetensors", Path.unlink, "model.safetensors is missing"),
        ("trainer/state", cut, "trainer/state has 100 bytes, not 5,000"),
        ("trainer/state", Path.unlink, "trainer/state is missing"),
        ("trainer", shutil.rmtree, "its trainer is missing"),
        ("manifest.json", cut, "manifest.json is damaged"),
        ("manifest.json", Path.unlink, "manifest.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_it_taken(
    run: Path, file: str, spoil: Callable[[Path], Any], words: str
) -> None:
    spoil(run / "checkpoints" / "step-000006" / file)
    checkpoint, said = resume(run)
    assert checkpoint == run / "checkpoints" / "step-000004"
    assert f"step-000006: {words}" in said
    assert "going on after step 4" in said
    assert "steps 5 to 7" in said
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["damaged-step-000006", "step-000002", "step-000004"]
    assert resume(run)[0] == checkpoint


def test_a_run_without_a_whole_checkpoint_is_refused_and_left_as_it_was(run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        cut(path / "model.safetensors")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"no checkpoint is whole .*step-000006: .*nothing to resume from"):
        resume(run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match=r"checkpoints are gone, and metrics\.jsonl has 7 steps"):
        resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", settings()).close()
    assert resume(tmp_path / "run") == (None, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["env=castle"],
        ["env.max_steps=3"],
        ["env.colour=red"],
        ["model=smollm2-135m"],
        ["model.renderer=chatml"],
        ["seed=4"],
        ["agent=a.py:f"],
        ["warm_start.steps=5"],
        ["algo=rloo"],
        ["trainer=megatron", "trainer.optimizer=adam"],
        ["run_dir=elsewhere"],
    ],
)
def test_what_a_run_is_can_not_change_on_the_way(run: Path, words: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{words[0].partition('=')[0]}=.*the run has .*begin a new run"):
        resume(run, *words)
    assert saved_settings(run) == settings()


@pytest.mark.slow
def test_other_settings_may_change_which_is_said_and_kept(run: Path) -> None:
    words = ["steps=12", "algo.lr=0.5", "env=calculator", "engine.api_key=secret"]
    said: list[str] = []
    folder = RunFolder.open(run, complete(merge_settings([f"resume={run}", *words])), said.append)
    folder.restore(6)
    folder.begin(6, {"settings": folder.settings()})
    folder.close()
    assert said[-1] == "settings changed: engine.api_key=None -> (hidden), algo.lr=1e-06 -> 0.5, steps=9 -> 12"
    assert (saved_settings(run).steps, saved_settings(run).resume) == (12, None)
    assert [row["step"] for row in folder.metrics()] == [1, 2, 3, 4, 5, 6]


def test_fewer_steps_than_a_run_has_behind_it_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"steps=5: .* has 6 steps behind it; use steps>=6"):
        resume(run, "steps=5")
    assert resume(run, "steps=6")[0] is not None


def test_a_digest_sees_what_happens_to_large_files(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(os.urandom(manifest.PIECE) * (2 * manifest.PIECES))
    manifest.write(tmp_path)
    assert manifest.damage(tmp_path) is None
    for place in (0, file.stat().st_size - 1):
        with file.open("r+b") as data:
            data.seek(place)
            old = data.read(1)
            data.seek(place)
            data.write(bytes([old[0] ^ 1]))
            data.flush()
            assert manifest.damage(tmp_path) == "large has changed since it was written"
            data.seek(place)
            data.write(old)


# ------------------------------------------------------------------------------------------ the lock

HOLD = """
import os, sys, time
from pathlib import Path
from agentrl.train.record.lock import RunLock
held = RunLock(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(60)  # a helper that outlives its parent
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_process_is_refused_with_the_firsts_name_until_that_is_killed(run: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"held\n"
            with pytest.raises(ConfigError, match=rf"process {first.pid} on host {socket.gethostname()}, since 20"):
                resume(run)
            assert [row["step"] for row in RunFolder(run).metrics()][-1] == 7, "readers are not held up"
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            assert resume(run)[0] is not None
        finally:
            os.killpg(first.pid, signal.SIGKILL)


def test_two_runs_of_one_process_do_not_share_a_folder_either(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", settings())
    with pytest.raises(ConfigError, match=rf"process {os.getpid()} on host"):
        resume(tmp_path / "run")
    folder.close()
    resume(tmp_path / "run")


@pytest.mark.slow
def test_where_a_file_system_keeps_no_locks_the_file_says_who_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    held = lock.RunLock(tmp_path)
    with pytest.raises(ConfigError, match=rf"process {os.getpid()} on host .*if that process has ended, remove"):
        lock.RunLock(tmp_path)
    held.release()
    lock.RunLock(tmp_path).release()
    child = subprocess.Popen(["true"])
    child.wait()
    gone = {"host": socket.gethostname(), "pid": child.pid, "since": "2026-01-01T00:00:00"}
    (tmp_path / "run.lock").write_text(json.dumps(gone))
    lock.RunLock(tmp_path).release()
    (tmp_path / "run.lock").write_text(json.dumps({**gone, "host": "another"}))
    with pytest.raises(ConfigError, match="on host another, since 2026-01-01 00:00:00"):
        lock.RunLock(tmp_path)


@pytest.mark.slow
def test_the_command_that_resumes_a_run_can_be_pasted_where_its_folder_has_a_space(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "my run", settings())
    *_, command = folder.resume_hint().splitlines()
    folder.close()
    assert shlex.split(command) == ["agentrl", "train", f"resume={tmp_path}/my run"]

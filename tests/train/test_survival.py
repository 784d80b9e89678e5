"""What a run needs to go on is kept with it, and what is gone of it is never passed over in silence."""

from __future__ import annotations

import errno
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import AgentRLError, ConfigError, StoreError, UntrustedCode
from agentrl.overrides import read_yaml
from agentrl.sessions.store.store import Store
from agentrl.train.driver.resuming import whole_checkpoints
from agentrl.train.record import kept_code, records
from agentrl.train.record.manifest import damage
from agentrl.train.record.replay import ReplayConfig, replay
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.verify import verify
from tests.records import digits
from tests.records.test_records import metrics, unpacked

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "metrics": [],
    "model": "base",
    "rollout": {"groups_per_step": 2, "group_size": 2, "turn_tokens": 4, "session_tokens": 96},
    "eval": {"tasks": 2},
    "checkpoint_every": 1,
    "steps": 1,
}


@pytest.fixture
def here(tmp_path: Path, in_tmp_path: None) -> Path:
    """A working directory with a small model and an environment in a file."""
    shutil.copytree(unpacked("63b9345", "sync", tmp_path / "recorded") / "model", tmp_path / "base")
    code = Path(digits.__file__).read_text().replace('agentrl.register("digits", Digits)\n', "")
    (tmp_path / "own.py").write_text(code)
    return tmp_path


@pytest.mark.parametrize("name", ["sessions.db", "groups.jsonl", "metrics.jsonl", "provenance.jsonl", "starts.jsonl"])
def test_a_run_of_which_a_record_is_gone_is_not_resumed_until_an_empty_file_says_that_it_was_meant(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unpacked("63b9345", "sync", tmp_path)
    for file in run.glob(f"{name}*"):
        file.unlink()
    with pytest.raises(ConfigError, match=f"has 2 steps behind it, and files are gone: {name}, which had .* touch "):
        agentrl.train(resume=str(run), steps=3)
    assert not (run / name).exists()
    (run / name).touch()
    agentrl.train(resume=str(run), steps=3)
    if name != "starts.jsonl":
        assert f"warning: {name}" in capsys.readouterr().out
    assert metrics(run)[-1]["step"] == 3
    assert name == "starts.jsonl" or not verify(run).passed


def test_the_steps_and_sessions_that_a_record_lacks_are_told(tmp_path: Path) -> None:
    run = unpacked("63b9345", "sync", tmp_path)
    with Store(run / "sessions.db") as store:
        for session in store.ids(group="train-1.0"):
            store.delete(session)
    for name in ("groups.jsonl", "provenance.jsonl"):
        lines = (run / name).read_bytes().splitlines(keepends=True)
        (run / name).write_bytes(b"".join(line for line in lines if json.loads(line)["step"] < 2))
    said: list[str] = []
    records.check(run, 2, 2, "losses.json", said.append)
    assert said == [
        "warning: groups.jsonl ends at step 1, and the run at step 2: the others stay missing",
        "warning: provenance.jsonl ends at step 1, and the run at step 2: the others stay missing",
        "warning: sessions.db lacks the sessions of 1 trained groups, the first train-1.0",
    ]


def test_a_run_that_lost_weights_is_not_resumed_without_the_file_that_says_which(tmp_path: Path) -> None:
    run = unpacked("63b9345", "sync", tmp_path)
    lines = (run / "provenance.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    row["published"]["incarnation"] = 1
    (run / "provenance.jsonl").write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")
    with pytest.raises(ConfigError, match=r"losses\.json is gone"):
        agentrl.train(resume=str(run), steps=3)


def test_a_disk_that_is_full_at_the_first_checkpoint_keeps_the_run_which_goes_on_as_if_nothing_had_been(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was removed, and with it a warm start of hours."""
    write = RunFolder.save_checkpoint

    def full(self: RunFolder, step: int, write_: Any, *others: Any) -> Path:
        def half(path: Path) -> None:
            (path / "model.safetensors").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        return write(self, step, half, *others)

    settings = {**SMALL, "env": "own.py:Digits"}
    agentrl.train(**settings, run_dir="whole")
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", full)
        with pytest.raises(StoreError, match=r"MiB free there.*No space left on device") as refused:
            agentrl.train(**settings, run_dir="run")
    (note,) = refused.value.__notes__
    assert note.startswith("once that is fixed, resume from its beginning")
    assert "agentrl train resume=run" in note
    assert not list((here / "run" / "checkpoints").iterdir())
    assert damage(here / "run" / "model") is None
    agentrl.train(resume="run")
    files = [whole_checkpoints(here / name)[-1] / "model.safetensors" for name in ("run", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert verify(here / "run").passed


def test_a_run_that_ended_before_its_first_row_of_metrics_is_resumed(here: Path) -> None:
    """It was refused: the ledger had the step, and `metrics.jsonl` was missing as if somebody had removed it."""
    (here / "plan.yaml").write_text("faults: [{action: full_disk, point: metrics.write, nth: 1}]")
    with pytest.raises(AgentRLError, match="No space left"):
        agentrl.train(**SMALL, env="own.py:Digits", run_dir="run", faults="plan.yaml")
    assert (metrics(here / "run"), (here / "run" / "groups.jsonl").stat().st_size > 0) == ([], True)
    agentrl.train(resume="run")
    assert [row["step"] for row in metrics(here / "run")] == [1]
    assert verify(here / "run").passed


def test_a_run_whose_environment_is_a_file_is_resumed_replayed_and_verified_from_anywhere(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is one that imports what lies beside it: it failed by the helper's name."""
    own = here / "own.py"
    own.write_text(f"{own.read_text()}\nimport helpers.one\n")
    (here / "helpers").mkdir()
    (here / "helpers" / "__init__.py").touch()
    (here / "helpers" / "one.py").write_text("from helpers.two import ONE\n")
    (here / "helpers" / "two.py").write_text("ONE = 1\n")
    first = agentrl.train(**SMALL, env="own.py:Digits", run_dir="run")
    assert (here / "run" / "code" / kept_code.INDEX).is_file()
    elsewhere = here / "elsewhere"
    shutil.move(here / "run", elsewhere / "moved")
    monkeypatch.chdir(elsewhere)
    own.unlink()
    shutil.rmtree(here / "helpers")
    second = agentrl.train(resume="moved", steps=2)
    said = capsys.readouterr().out
    assert "own.py is not there: its copy moved/code/" in said
    assert read_yaml("moved/config.yaml")["env"]["name"] == "own.py:Digits"
    assert first.before is not None
    assert second.before is not None
    assert second.before.scores == first.before.scores
    assert "the held-out reward did not rise" in said
    assert "before training, " in said
    assert agentrl.train(resume="moved", steps=3, eval={"n": 2}).before is None, "another evaluation"
    assert verify(Path("moved")).passed
    agentrl.train(rerun="moved", run_dir="again")


async def test_a_replay_uses_the_copy_of_a_file_that_is_gone(here: Path) -> None:
    run = here / "run"
    await _trained(run)
    (here / "own.py").unlink()
    said: list[str] = []
    with pytest.raises(UntrustedCode, match=r"own\.py"):
        await replay(run, "train-0.0-0", ReplayConfig(turn=1), said.append)
    result = await replay(run, "train-0.0-0", ReplayConfig(turn=1), said.append, trust=True)
    assert result.replays[0].whole
    assert any("its copy" in line for line in said)


async def _trained(run: Path) -> None:
    import asyncio

    await asyncio.to_thread(agentrl.train, **SMALL, env="own.py:Digits", run_dir=str(run))


def test_a_file_that_changed_is_used_as_it_is_and_that_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agentrl.train(**SMALL, env="own.py:Digits", run_dir="run")
    before = (here / "own.py").read_text()
    (here / "own.py").write_text(before.replace("% 8 / 8", "% 4 / 4"))
    agentrl.train(resume="run", steps=2)
    assert "own.py changed since this run used it; what it was is in run/code/" in capsys.readouterr().out
    copies = {path.read_text() for path in (here / "run" / "code").glob("*/own.py")}
    assert copies == {before, (here / "own.py").read_text()}
    agentrl.train(resume="run", steps=3)
    assert "changed since" not in capsys.readouterr().out


def test_a_copy_that_was_changed_is_refused(here: Path) -> None:
    agentrl.train(**SMALL, env="own.py:Digits", run_dir="run")
    (here / "own.py").unlink()
    (copy,) = (here / "run" / "code").glob("*/own.py")
    copy.write_text("import os")
    with pytest.raises(ConfigError, match=r"own\.py is not there, and its copy .* is missing or was changed"):
        agentrl.train(resume="run", steps=2)


def test_files_of_one_name_from_several_folders_and_in_any_setting_are_kept_apart(tmp_path: Path) -> None:
    names = [str(tmp_path / folder / "plug.py") for folder in ("a", "b")]
    for name in names:
        Path(name).parent.mkdir()
        Path(name).write_text(f"# {name}")
    settings = {
        "env": {"name": "mixture", "one": {"name": f"{names[0]}:A"}},
        "metrics": [f"{names[1]}:B"],
        "agent": "python plug.py --fast",
        "note": "no.py:X",
    }
    run = tmp_path / "run"
    kept_code.keep(run, settings)
    assert kept_code.usable(run, settings) == settings
    for name in names:
        Path(name).unlink()
    found = kept_code.usable(run, settings)
    for text, name in ((found["env"]["one"]["name"], names[0]), (found["metrics"][0], names[1])):
        assert Path(text.rpartition(":")[0]).read_text() == f"# {name}"
    assert (found["agent"], found["note"]) == (settings["agent"], settings["note"])
    assert kept_code.restore_names(run, found) == settings


def test_an_evaluation_by_an_api_at_a_dead_address_ends_before_any_session(here: Path) -> None:
    """Each session went through its retries, and the batch through three attempts."""
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ConfigError, match=r"policy='http.*nothing takes connections at 127\.0\.0\.1:"):
            agentrl.evaluate("calculator", policy=url, api={"model": "m"}, run_dir="eval")
    assert not (here / "eval").exists()

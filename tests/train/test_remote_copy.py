"""Checkpoints in object storage: what is complete there resumes elsewhere, to the last bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from safetensors.torch import load_file

import agentrl
from agentrl.errors import ConfigError
from agentrl.train.record import remote_copy
from agentrl.train.record.remote_copy import Storage, Uploads, fetch
from tests.train.test_rerun import WORLD
from tests.train.test_resume import rows

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 4, "rollout.turn_tokens": 16, "seed": 3},
    **{"algo.lr": 1e-3, "eval.tasks": 1, "checkpoint_every": 1},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with what an upload reads: a model, one checkpoint, a ledger and a store."""
    folder = tmp_path / "run"
    for name in ("model/weights", "checkpoints/step-000001/trainer/state", "metrics.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """In memory, where nothing can be renamed either."""
    url = f"memory://{request.node.name}"
    fs = fsspec.filesystem("memory")
    if fs.exists(url):
        fs.rm(url, recursive=True)
    return url


def add_step(run: Path, step: int) -> None:
    shutil.copytree(run / "checkpoints/step-000001", run / f"checkpoints/step-{step:06d}")


def test_a_run_resumed_from_its_url_in_another_folder_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    url, straight, elsewhere = (tmp_path / "bucket").as_uri(), tmp_path / "straight", tmp_path / "elsewhere"
    world = tmp_path / "world.py"
    world.write_text(WORLD)
    agentrl.train(f"{world}:Dense", run_dir=str(straight), steps=3, checkpoint_url=url, **SETTINGS)
    storage = Storage(url, "checkpoint_url")
    assert storage.steps() == [2, 3]
    (tmp_path / "bucket" / "step-000003.json").unlink()  # as if the last upload had not ended
    shutil.move(straight, tmp_path / "lost")
    agentrl.train(resume=url, run_dir=str(elsewhere))
    assert rows(elsewhere) == rows(tmp_path / "lost")
    assert rows(elsewhere)[-1]["grad_norm"] > 0, "nothing was learned, so nothing was compared"
    first, second = (
        load_file(run / "checkpoints/step-000003/model.safetensors") for run in (tmp_path / "lost", elsewhere)
    )
    assert all(first[name].equal(second[name]) for name in first)
    assert storage.steps() == [2, 3]


def test_a_copy_that_lacks_its_index_is_none_and_the_next_upload_removes_it(run: Path, url: str) -> None:
    storage = Storage(url, "checkpoint_url")
    storage.put(run / "metrics.jsonl", "step-000000/run/metrics.jsonl")
    assert storage.steps() == []
    Uploads(run, url, 2, 60.0, pytest.fail).close()
    assert storage.steps() == [1]
    assert not storage.files.exists(f"{storage.root}/step-000000")


def test_as_many_copies_stay_as_the_run_keeps_checkpoints_and_the_model_is_uploaded_once(
    run: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    monkeypatch.setattr(
        Storage, "put", lambda self, source, name, put_one=Storage.put: (put.append(name), put_one(self, source, name))
    )
    for step in (1, 2, 3):
        if step > 1:
            add_step(run, step)
        Uploads(run, url, 2, 60.0, pytest.fail).close()
    assert Storage(url, "resume").steps() == [2, 3]
    assert put.count("model/weights") == 1


def test_an_upload_that_fails_is_told_and_done_again_when_the_run_ends(
    run: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    uploads = Uploads(run, url, 2, 60.0, warnings.append)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "commit", lambda *args: (_ for _ in ()).throw(OSError("no route")))
        uploads.add_newest()
        assert uploads.wait_until_idle(60)
    assert "step-000001 was not uploaded" in warnings[0]
    assert "no route" in warnings[0]
    uploads.close()
    assert Storage(url, "resume").steps() == [1]


def test_a_storage_that_hangs_ends_no_run(run: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    warnings: list[str] = []
    free = threading.Event()
    monkeypatch.setattr(Storage, "put", lambda *args: free.wait())
    Uploads(run, url, 2, 0.1, warnings.append).close()
    assert "checkpoint_url_timeout" in warnings[0]
    free.set()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nosuch://bucket/x", "nosuch"),
        ("file:///proc/nothing", "can't write there"),
        ("/a/folder", "is no URL"),
        ("ftp://127.0.0.1:1/x", "can't be reached"),
    ],
)
def test_a_wrong_url_is_refused_by_name_before_anything_is_trained(wrong: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint_url=.*(" + message + ")"):
        agentrl.train("calculator", run_dir=str(tmp_path / "run"), steps=1, checkpoint_url=wrong, **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_a_url_that_holds_another_run_is_refused(run: Path, url: str) -> None:
    Uploads(run, url, 2, 60.0, pytest.fail).close()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match="holds step 1 of a run, and this run is new; resume=memory://"):
        Uploads(run, url, 2, 60.0, pytest.fail)


def test_what_can_not_be_downloaded_is_refused_and_leaves_no_folder(run: Path, url: str, tmp_path: Path) -> None:
    new, said = tmp_path / "new", lambda text: None
    with pytest.raises(ConfigError, match=r"no complete copy of a run there"):
        fetch(url, new, said)
    Uploads(run, url, 2, 60.0, pytest.fail).close()
    with pytest.raises(ConfigError, match="is there; resume="):
        fetch(url, run, said)
    storage = Storage(url, "resume")
    storage.files.pipe_file(f"{storage.root}/step-000001/run/metrics.jsonl", b"cut")
    with pytest.raises(ConfigError, match=r"metrics.jsonl has 3 bytes, not 13"):
        fetch(url, new, said)
    storage.files.pipe_file(f"{storage.root}/step-000001.json", json.dumps({"files": {"../outside": 3}}).encode())
    with pytest.raises(ConfigError, match="may not be named"):
        fetch(url, new, said)
    assert not new.exists()
    assert not (tmp_path / "outside").exists()


def test_a_folder_is_named_as_the_url_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []
    monkeypatch.setattr(remote_copy, "fetch", lambda url, run, say: fetched.append(run) or run)
    settings = remote_copy.download_resumed({"resume": "s3://bucket/runs/swe-1/", "steps": 5})
    assert settings == {"resume": "runs/swe-1", "steps": 5}
    assert remote_copy.download_resumed({"resume": "runs/swe-1"}) == {"resume": "runs/swe-1"}

"""Metrics reach every back end that is named, and none of them can end a run, delay it or fill its memory."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.errors import UnknownName
from agentrl.overrides import typed, validate
from agentrl.train.preflight import check_training
from agentrl.train.run_folder import RunFolder
from agentrl.train.trackers import TRACKERS, Tracker, Trackers, worker
from agentrl.train.trackers.base import About
from tests.train.test_run_folder import scalars

CONFIG = validate(typed(["env=calculator", "env.api_key=sk-planted", "metrics=[tensorboard]"]), RunConfig)
ROWS = [{"step": step, "reward/mean": step / 10, "time/step": 2.0} for step in range(1, 6)]


class Kept(Tracker):
    """Keeps what it gets."""

    rows: list[tuple[int, dict[str, float]]]
    made: list[Kept]

    def __init__(self, about: About) -> None:
        self.about, self.rows, self.closed = about, [], False
        self.made.append(self)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.rows.append((step, dict(numbers)))

    def close(self) -> None:
        self.closed = True


def kinds(**more: Any) -> type[Kept]:
    """A back end of its own for a test."""
    return type("Mine", (Kept,), {"made": [], **more})


def test_several_back_ends_get_each_row_once_and_in_order_and_are_closed(tmp_path: Path) -> None:
    first, second = kinds(), kinds()
    trackers = Trackers(About(tmp_path), {"first": first, "second": second}, pytest.fail)
    for row in ROWS:
        trackers.log(row)
    trackers.close()
    for kind in (first, second):
        (made,) = kind.made
        assert made.rows == [(row["step"], {k: v for k, v in row.items() if k != "step"}) for row in ROWS]
        assert made.closed


@pytest.mark.parametrize("broken", ["__init__", "log", "close"])
def test_a_back_end_that_fails_gives_one_warning_and_the_others_get_everything(broken: str, tmp_path: Path) -> None:
    def fail(*args: Any) -> None:
        raise SystemExit("the server said \x1b[31mno")

    said: list[str] = []
    good, bad = kinds(), kinds(**{broken: fail})
    trackers = Trackers(About(tmp_path), {"good": good, "bad": bad}, said.append)
    for row in ROWS:
        trackers.log(row)
    trackers.close()
    assert len(good.made[0].rows) == len(ROWS)
    assert len(said) == 1
    assert said[0].startswith("metrics=bad: ")
    assert "SystemExit: the server said ?[31mno" in said[0]


def test_a_back_end_that_hangs_neither_delays_a_step_nor_keeps_more_rows_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.05)
    monkeypatch.setattr(worker, "QUEUED", 3)
    go_on, said = threading.Event(), list[str]()
    kind = kinds(log=lambda self, step, numbers: go_on.wait(60))
    trackers = Trackers(About(tmp_path), {"slow": kind}, said.append)
    for row in ROWS * 20:
        trackers.log(row)
    trackers.close()  # would not come back if it waited for the back end
    go_on.set()
    assert said == ["metrics=slow: it is 3 steps behind, and gets no more until it has caught up; "
                    "metrics.jsonl has every step"]  # fmt: skip


def test_a_package_that_is_missing_is_named_with_what_brings_it_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    missing, good = kinds(package="no_such_package", extra="wandb"), kinds()
    trackers = Trackers(About(tmp_path), {"missing": missing, "good": good}, said.append)
    trackers.log(ROWS[0])
    trackers.close()
    assert len(good.made[0].rows) == 1
    assert missing.made == []
    assert len(said) == 1
    assert "'no_such_package' is not installed" in said[0]
    assert "agentrl-platform[wandb]" in said[0]


def test_a_back_end_that_no_one_knows_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    config = validate(typed(["env=calculator", "metrics=[wandbb]", f"run_dir={tmp_path / 'run'}"]), RunConfig)
    with pytest.raises(UnknownName, match="did you mean 'wandb'"):
        check_training(config)


def test_a_back_end_may_be_named_alone_or_none() -> None:
    assert validate(typed(["env=calculator", "metrics=mlflow"]), RunConfig).metrics == ("mlflow",)
    assert validate(typed(["env=calculator", "metrics=[]"]), RunConfig).metrics == ()


def test_a_resumed_run_hands_all_rows_again_only_to_a_back_end_that_lost_them(tmp_path: Path) -> None:
    lost, kept = kinds(rewritten=True), kinds()
    folder = RunFolder(tmp_path)
    folder.trackers = Trackers(About(tmp_path), {"lost": lost, "kept": kept}, pytest.fail)
    for row in ROWS:
        folder.log(row["step"], {"reward/mean": row["reward/mean"]})
    folder.drop_after(3)
    folder.log(4, {"reward/mean": 9.0})
    folder.close()
    assert [[step for step, _ in made.rows] for made in lost.made] == [[1, 2, 3, 4, 5], [1, 2, 3, 4]]
    assert [[step for step, _ in made.rows] for made in kept.made] == [[1, 2, 3, 4, 5], [4]]


def test_back_ends_are_told_the_settings_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = kinds()
    monkeypatch.setitem(TRACKERS._targets, "tensorboard", mine)
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    folder.track(CONFIG, pytest.fail)
    folder.log(1, {"reward/mean": 0.5})
    folder.close()
    about = mine.made[0].about
    assert (about.name, about.project, about.settings["env.name"]) == ("run", "agentrl", "calculator")
    assert about.settings["env.api_key"] == "(hidden)"


# -------------------------------------------------------------------------------------------- real packages


def write(names: str, folder: Path, **environment: str) -> None:
    """A run's metrics, written to back ends twice, as by a run that is resumed, in a process of its own."""
    script = (
        "import sys; from pathlib import Path\n"
        "from agentrl.train.trackers import TRACKERS, Trackers; from agentrl.train.trackers.base import About\n"
        "names, folder = sys.argv[1].split(','), Path(sys.argv[2]); said = []\n"
        "about = About(folder, 'planted-project', {'algo.lr': 0.5, 'env.name': 'calculator'})\n"
        "for steps in (range(1, 4), range(4, 6)):\n"
        "    trackers = Trackers(about, {name: TRACKERS.find(name) for name in names}, said.append)\n"
        "    for step in steps: trackers.log({'step': step, 'reward/mean': step / 10, 'time/step': 2.0})\n"
        "    trackers.close()\n"
        "assert said == [], said\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, names, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def needed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'agentrl-platform[{package}]'")


@pytest.mark.slow
def test_tensorboard_has_the_steps_of_both_parts(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    write("tensorboard", tmp_path)
    assert {key[1]: value for key, value in scalars(tmp_path / "tensorboard").items() if key[0] == "reward/mean"} == {
        step: pytest.approx(step / 10) for step in range(1, 6)
    }


@pytest.mark.slow
def test_wandb_writes_offline_where_nobody_is_logged_in_and_asks_for_nothing(tmp_path: Path) -> None:
    needed("wandb")
    write("wandb", tmp_path, HOME=str(tmp_path), WANDB_API_KEY="")
    runs = sorted((tmp_path / "trackers" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert {run.name.rpartition("-")[2] for run in runs} == {(tmp_path / "trackers" / "wandb-id").read_text()}
    data = b"".join(file.read_bytes() for run in runs for file in run.glob("*.wandb"))
    assert data.count(b"reward/mean") >= 5


@pytest.mark.slow
def test_mlflow_has_one_run_with_its_settings_and_every_step(tmp_path: Path) -> None:
    needed("mlflow")
    write("mlflow", tmp_path, MLFLOW_TRACKING_URI="")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/trackers/mlflow.db")
    experiment = client.get_experiment_by_name("planted-project")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.data.params["algo.lr"], run.info.status) == ("0.5", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert {each.step: each.value for each in history} == {step: step / 10 for step in range(1, 6)}


@pytest.mark.slow
def test_trackio_has_one_run_with_every_step(tmp_path: Path) -> None:
    needed("trackio")
    write("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    script = (
        "import trackio.sqlite_storage as s; rows = s.SQLiteStorage.get_logs('planted-project', sys.argv[1])\n"
        "print({row['step']: row['reward/mean'] for row in rows})"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {script}", tmp_path.name],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str({step: step / 10 for step in range(1, 6)})

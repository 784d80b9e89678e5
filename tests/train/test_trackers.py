"""Metrics reach every back end that is named, and none of them can end a run, delay it or fill its memory."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.config import RunConfig
from agentrl.errors import UnknownName
from agentrl.overrides import merge_settings, validate
from agentrl.train.plan.preflight import check_training
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.trackers import TRACKERS, Tracker, Trackers
from agentrl.train.trackers.base import TrackedRun
from tests.train.test_run_folder import scalars

CONFIG = validate(merge_settings(["env=calculator", "env.api_key=sk-planted", "metrics=[tensorboard]"]), RunConfig)
ROWS = [{"step": step, "reward/mean": step / 10, "time/step": 2.0} for step in range(1, 6)]


class Kept(Tracker):
    """Keeps what it gets."""

    rows: list[tuple[int, dict[str, float]]]
    made: list[Kept]

    def __init__(self, about: TrackedRun) -> None:
        self.about, self.rows, self.closed = about, [], False
        self.made.append(self)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.rows.append((step, dict(numbers)))

    def close(self) -> None:
        self.closed = True


def kinds(**more: Any) -> type[Kept]:
    """A back end of its own for a test."""
    return type("Mine", (Kept,), {"made": [], **more})


def write_rows(folder: Path, rows: Sequence[Mapping[str, float]] = ROWS) -> None:
    """What a run has in metrics.jsonl."""
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def steps(kind: type[Kept]) -> list[list[int]]:
    """The steps that each instance got."""
    return [[step for step, _ in made.rows] for made in kind.made]


def test_several_back_ends_get_each_row_once_and_in_order_and_are_closed(tmp_path: Path) -> None:
    first, second = kinds(), kinds()
    trackers = Trackers(TrackedRun(tmp_path), {"first": first, "second": second}, pytest.fail)
    for end in range(1, len(ROWS) + 1):
        write_rows(tmp_path, ROWS[:end])
        trackers.pass_on()
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
    trackers = Trackers(TrackedRun(tmp_path), {"good": good, "bad": bad}, said.append)
    for end in range(1, len(ROWS) + 1):
        write_rows(tmp_path, ROWS[:end])
        trackers.pass_on()
    trackers.close()
    assert len(good.made[0].rows) == len(ROWS)
    assert len(said) == 1
    assert said[0].startswith("metrics=bad: ")
    assert "SystemExit: the server said ?[31mno" in said[0]


def test_a_back_end_that_hangs_delays_nothing_and_gets_the_rest_when_the_run_is_resumed(
    tmp_path: Path,
) -> None:
    go_on, said = threading.Event(), list[str]()

    def log(self: Kept, step: int, numbers: Mapping[str, float]) -> None:
        assert step < 3 or go_on.wait(60)
        self.rows.append((step, dict(numbers)))

    kind = kinds(log=log)
    trackers = Trackers(TrackedRun(tmp_path), {"slow": kind}, said.append)
    trackers.patience = 0.05
    write_rows(tmp_path)
    trackers.pass_on()
    (thread,) = [each for each in threading.enumerate() if each.name == "agentrl-metrics-slow"]
    trackers.close()  # would not come back if it waited for the back end
    assert said == ["metrics=slow: it has not ended after 0.05 s, and is left behind; metrics.jsonl has every step"]
    go_on.set()
    thread.join()
    trackers.start_again()
    trackers.patience = 60.0
    trackers.close()
    first, second = steps(kind)
    assert first + second == [1, 2, 3, 4, 5]
    assert len(first) <= 3


def test_what_fails_for_a_while_comes_later_and_what_always_fails_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    down = True

    def log(self: Kept, step: int, numbers: Mapping[str, float]) -> None:
        if down or step == 3:
            raise ConnectionError("no route")
        self.rows.append((step, dict(numbers)))

    kind = kinds(log=log)
    trackers = Trackers(TrackedRun(tmp_path), {"far": kind}, said.append)
    write_rows(tmp_path, ROWS[:2])
    trackers.pass_on()
    trackers.close()
    assert steps(kind) == [[]]
    down = False
    write_rows(tmp_path)
    trackers.pass_on()
    trackers.close()
    assert steps(kind)[1] == [1, 2, 4, 5]
    assert len(said) == 2
    assert all("ConnectionError: no route" in text for text in said)


class OwnFile(Tracker):
    """Knows by itself which step it has; what it was handed since its last flush is lost in a kill, as in a buffer."""

    def __init__(self, about: TrackedRun) -> None:
        self.path, self.buffer = about.folder / "own.txt", list[int]()

    def last(self) -> int:
        return max((int(line) for line in self.path.read_text().split()), default=0) if self.path.exists() else 0

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.buffer.append(step)
        if len(self.buffer) == 2:
            self.close()

    def close(self) -> None:
        with open(self.path, "a") as file:
            file.writelines(f"{step}\n" for step in self.buffer)
        self.buffer.clear()


@pytest.mark.parametrize("after", range(6))
def test_what_a_killed_process_had_not_written_is_passed_on_by_the_next(after: int, tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS[:after])
    killed = OwnFile(TrackedRun(tmp_path))
    for row in ROWS[:after]:
        killed.log(int(row["step"]), row)
    del killed  # with what is in its buffer
    write_rows(tmp_path)
    trackers = Trackers(TrackedRun(tmp_path), {"own": OwnFile}, pytest.fail)
    trackers.start_again()
    trackers.close()
    assert (tmp_path / "own.txt").read_text().split() == ["1", "2", "3", "4", "5"]


def test_a_package_that_is_missing_is_named_with_what_brings_it_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    missing, good = kinds(package="no_such_package", extra="wandb"), kinds()
    trackers = Trackers(TrackedRun(tmp_path), {"missing": missing, "good": good}, said.append)
    write_rows(tmp_path, ROWS[:1])
    trackers.pass_on()
    trackers.close()
    assert len(good.made[0].rows) == 1
    assert missing.made == []
    assert len(said) == 1
    assert "'no_such_package' is not installed" in said[0]
    assert "agentrl-platform[wandb]" in said[0]


def test_a_back_end_that_no_one_knows_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    config = validate(merge_settings(["env=calculator", "metrics=[wandbb]", f"run_dir={tmp_path / 'run'}"]), RunConfig)
    with pytest.raises(UnknownName, match="did you mean 'wandb'"):
        check_training(config)


def test_a_back_end_may_be_named_alone_or_none() -> None:
    assert validate(merge_settings(["env=calculator", "metrics=mlflow"]), RunConfig).metrics == ("mlflow",)
    assert validate(merge_settings(["env=calculator", "metrics=[]"]), RunConfig).metrics == ()


def test_a_resumed_run_hands_steps_again_only_to_a_back_end_that_begins_from_nothing(tmp_path: Path) -> None:
    lost, kept = kinds(rewritten=True), kinds()
    folder = RunFolder(tmp_path)
    folder.trackers = Trackers(TrackedRun(tmp_path), {"lost": lost, "kept": kept}, pytest.fail)
    for row in ROWS:
        folder.log(int(row["step"]), {"reward/mean": row["reward/mean"]})
    folder.drop_after(3)
    folder.log(4, {"reward/mean": 9.0})
    folder.close()
    folder = RunFolder(tmp_path)
    folder.trackers = Trackers(TrackedRun(tmp_path), {"lost": lost, "kept": kept}, pytest.fail)
    folder.drop_after(4)
    for step in (5, 6):
        folder.log(step, {"reward/mean": 9.0})
    folder.close()
    assert steps(lost) == [[1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    assert steps(kept) == [[1, 2, 3, 4, 5], [], [6]]


def test_back_ends_are_told_the_settings_without_secrets(tmp_path: Path, forget_names: Callable[[Any], None]) -> None:
    mine = kinds()
    forget_names(TRACKERS)
    TRACKERS.register("tensorboard", mine)
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    folder.track(pytest.fail)
    folder.log(1, {"reward/mean": 0.5})
    folder.close()
    about = mine.made[0].about
    assert (about.name, about.project, about.settings["env.name"]) == ("run", "agentrl", "calculator")
    assert about.settings["env.api_key"] == "(hidden)"


# -------------------------------------------------------------------------------------------- real packages


def write(name: str, folder: Path, killed_after: int = 3, **environment: str) -> None:
    """Five steps, passed on by a process that was killed once three rows were there, and by one that went on.

    The first is killed as soon as its thread is done with `killed_after` rows; with 0 it ends in order.
    """
    script = (
        "import json, os, sys, time; from pathlib import Path\n"
        "from agentrl.train.trackers import TRACKERS, Trackers; from agentrl.train.trackers.base import TrackedRun\n"
        "name, folder, first, last, killed = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])\n"
        "about, said = TrackedRun(folder, 'planted-project', {'algo.lr': 0.5, 'env.name': 'calculator'}), []\n"
        "trackers = Trackers(about, {name: TRACKERS.find(name)}, said.append); trackers.patience = 250.0\n"
        "with open(folder / 'metrics.jsonl', 'a') as file:\n"
        "    for step in range(first, last + 1):\n"
        "        print(json.dumps({'step': step, 'reward/mean': step + 0.7351, 'time/step': 2.0}), file=file)\n"
        "trackers.pass_on()\n"
        "while killed:\n"
        "    if trackers._workers[0]._last >= killed: os.kill(os.getpid(), 9)\n"
        "    time.sleep(0.001)\n"
        "trackers.close()\n"
        "assert said == [], said\n"
    )
    for first, last, killed in ((1, 3, killed_after), (4, 5, 0)):
        done = subprocess.run(
            [sys.executable, "-c", script, name, str(folder), str(first), str(last), str(killed)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=270,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if killed else 0), done.stdout + done.stderr


def needed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'agentrl-platform[{package}]'")


@pytest.mark.slow
def test_tensorboard_has_the_steps_of_both_parts(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    write("tensorboard", tmp_path, killed_after=0)  # a run that is resumed after a kill removes its files
    assert {key[1]: value for key, value in scalars(tmp_path / "tensorboard").items() if key[0] == "reward/mean"} == {
        step: pytest.approx(step + 0.7351) for step in range(1, 6)
    }


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_wandb_writes_offline_where_nobody_is_logged_in_and_asks_for_nothing(killed_after: int, tmp_path: Path) -> None:
    needed("wandb")
    write("wandb", tmp_path, killed_after, HOME=str(tmp_path), WANDB_API_KEY="")
    runs = sorted((tmp_path / "trackers" / "wandb").glob("offline-run-*"))
    assert len(runs) == (1 if killed_after else 2)
    assert {run.name.rpartition("-")[2] for run in runs} == {(tmp_path / "trackers" / "wandb-id").read_text()}
    data = b"".join(file.read_bytes() for run in runs for file in run.glob("*.wandb"))
    counts = {data.count(b"%.4f" % (step + 0.7351)) for step in range(1, 6)}
    assert counts == {2}  # once in the history, once in the summary that goes with it


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_mlflow_has_one_run_with_its_settings_and_every_step_once(killed_after: int, tmp_path: Path) -> None:
    needed("mlflow")
    write("mlflow", tmp_path, killed_after, MLFLOW_TRACKING_URI="")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/trackers/mlflow.db")
    experiment = client.get_experiment_by_name("planted-project")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.data.params["algo.lr"], run.info.status) == ("0.5", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(each.step, each.value) for each in history] == [(step, step + 0.7351) for step in range(1, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_trackio_has_one_run_with_every_step_once(killed_after: int, tmp_path: Path) -> None:
    needed("trackio")
    write("trackio", tmp_path, killed_after, TRACKIO_DIR=str(tmp_path / "trackio"))
    script = (
        "import trackio.sqlite_storage as s; rows = s.SQLiteStorage.get_logs('planted-project', sys.argv[1])\n"
        "print([(row['step'], row['reward/mean']) for row in rows])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {script}", (tmp_path / "trackers" / "trackio-name").read_text()],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str([(step, step + 0.7351) for step in range(1, 6)])

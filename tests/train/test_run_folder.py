"""The run folder survives what can happen to it."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, StoreError
from agentrl.overrides import merge_settings, validate
from agentrl.train.driver.resuming import read_settings, saved_settings, step_of
from agentrl.train.driver.setup import complete
from agentrl.train.record import manifest
from agentrl.train.record.lock import RunLock, holder
from agentrl.train.record.run_folder import RunFolder

CONFIG = validate(merge_settings(["env=calculator", "algo.lr=0.5"]), RunConfig)


def test_a_new_run_writes_its_settings_and_never_writes_over_another(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", CONFIG).close()
    assert "lr: 0.5" in (tmp_path / "run" / "config.yaml").read_text()
    for resumable, hint in ((True, "already; resume=.* continues it, another"), (False, "already; another run_dir")):
        with pytest.raises(ConfigError, match=hint):
            RunFolder.create(tmp_path / "run", CONFIG, resumable=resumable)


def test_a_rerun_names_the_command_that_begins_it_again_and_none_that_would_be_refused(tmp_path: Path) -> None:
    """An interrupted rerun, and one that did not rise, said `resume=`, which no rerun takes."""
    again = RunFolder.create(tmp_path / "run", CONFIG.model_copy(update={"rerun": "first"}))
    assert again.resume_hint().endswith(f"agentrl train rerun=first run_dir={tmp_path}/run-again")
    again.close()


def test_a_folder_that_can_not_be_a_runs_is_refused_by_name_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "work" / "model").mkdir(parents=True)
    for path, words in (("file", "is a file"), ("file/run", "can't make that folder"), ("work", "holds model")):
        with pytest.raises(ConfigError, match=words):
            RunFolder.create(tmp_path / path, CONFIG)
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "work" / "model").is_dir()


def test_a_run_that_is_discarded_takes_with_it_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    for path in ("deep/er/run", "notes"):
        folder = RunFolder.create(tmp_path / path, CONFIG)
        folder.log(1, {"reward/mean": 0.5})
        folder.discard()
    assert [p.name for p in tmp_path.iterdir()] == ["notes"]
    assert {p.name for p in (tmp_path / "notes").iterdir()} <= {"mine.txt", "run.lock"}


def test_a_run_of_one_machine_that_was_given_settings_of_ray_can_still_be_read(tmp_path: Path) -> None:
    """They were ignored once, and stand in its config.yaml; where a new run is given them they are refused."""
    RunFolder.create(tmp_path / "run", CONFIG).close()
    file = tmp_path / "run" / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["cluster"] |= {"resources": {"trainer": {"cpus": 2.0}}, "address": "auto"}
    file.write_text(yaml.safe_dump(settings))
    assert saved_settings(tmp_path / "run").cluster.address == "auto"
    assert complete({"resume": str(tmp_path / "run")}).cluster.address == "auto"


def test_resuming_what_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        RunFolder.open(tmp_path / "none", CONFIG, print)
    assert not (tmp_path / "none").exists()
    RunFolder.create(tmp_path / "run", CONFIG).close()
    with pytest.raises(ConfigError, match=f"resume=.*; the run is {tmp_path}/run"):
        read_settings(tmp_path / "run" / "checkpoints" / "step-000002", "resume")


def test_metrics_are_one_flat_object_a_step_and_the_same_in_tensorboard(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log(1, {"reward/mean": 0.5, "time/step": 2.0})
    folder.close()
    assert folder.metrics() == [{"step": 1, "reward/mean": 0.5, "time/step": 2.0}]
    assert scalars(tmp_path / "tensorboard") == {("reward/mean", 1): 0.5, ("time/step", 1): 2.0}


def test_a_torn_last_line_is_left_out_and_a_resumed_run_drops_what_lies_beyond_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.log(step, {"reward/mean": float(step)})
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "rew')
    assert [row["step"] for row in folder.metrics()] == [1, 2, 3]
    folder.drop_after(2)
    folder.log(3, {"reward/mean": 30.0})
    folder.close()
    assert [row["reward/mean"] for row in folder.metrics()] == [1.0, 2.0, 30.0]


def test_a_checkpoint_that_was_interrupted_does_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, lambda path: (path / "trainer").touch(), keep=2)

    def dies(path: Path) -> None:
        (path / "trainer").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.save_checkpoint(2, dies, keep=2)
    assert [step_of(path) for path in folder.checkpoints()] == [1]


def test_a_checkpoint_whose_trainer_is_still_being_written_is_not_resumed_from_and_displaces_none(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, lambda path: (path / "trainer").touch(), keep=1)
    late = folder.save_checkpoint(2, lambda path: (path / "model.safetensors").touch(), keep=1)
    assert [step_of(path) for path in folder.checkpoints()] == [1]
    (late / "trainer").touch()
    assert [step_of(path) for path in folder.checkpoints()] == [1, 2]
    folder.save_checkpoint(3, lambda path: (path / "trainer").touch(), keep=1)
    assert [step_of(path) for path in folder.checkpoints()] == [3]


def test_a_checkpoint_that_can_not_be_written_leaves_those_before_it_and_says_why(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, lambda path: (path / "trainer").touch(), keep=1)

    def full(path: Path) -> None:
        (path / "trainer").write_bytes(b"half")
        raise RuntimeError("file write failed")

    with pytest.raises(StoreError, match=r"step-000002 .*MiB free there.*file write failed"):
        folder.save_checkpoint(2, full, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    assert manifest.damage(tmp_path / "checkpoints" / "step-000001") is None


def test_a_trainer_that_was_written_late_is_on_record_once_the_run_ends(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    late = folder.save_checkpoint(1, lambda path: (path / "model.safetensors").touch(), keep=1)
    (late / "trainer").mkdir()
    (late / "trainer" / "part").write_bytes(b"shards")
    folder.close()
    (late / "trainer" / "part").write_bytes(b"shred")
    assert "part has 5 bytes, not 6" in str(manifest.damage(late))


@pytest.mark.slow
def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3, 4):
        folder.save_checkpoint(step, lambda path: (path / "trainer").touch(), keep=2)
    assert [step_of(path) for path in folder.checkpoints()] == [3, 4]


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    names = events.Tags()["tensors"]
    return {(n, e.step): float(e.tensor_proto.float_val[0]) for n in names for e in events.Tensors(n)}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["eval/mean", "-eval/loss"])
@given(
    values=st.lists(st.sampled_from([None, math.nan, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=6),
    keep=st.integers(1, 3),
)
@settings(max_examples=8)
def test_the_best_checkpoint_so_far_is_always_kept_besides_the_newest(
    metric: str, values: list[float | None], keep: int
) -> None:
    sign, name = (-1, metric[1:]) if metric.startswith("-") else (1, metric)
    with tempfile.TemporaryDirectory() as place:
        folder, measured = RunFolder(Path(place)), dict[int, float]()
        for step, value in enumerate(values, 1):
            folder.log(step, {} if value is None else {name: value})
            measured |= {} if value is None or math.isnan(value) else {step: value}
            folder.save_checkpoint(step, lambda path: (path / "trainer").touch(), keep, metric)
            kept = {step_of(path) for path in folder.checkpoints()}
            newest = set(range(max(step - keep, 0) + 1, step + 1))
            best = max(measured, key=lambda each: (sign * measured[each], each), default=step)
            assert kept == newest | {best}
            if measured:
                said = json.loads((Path(place) / "best.json").read_text())
                assert said == {"checkpoint": f"step-{best:06d}", "metric": name, "value": measured[best]}
        folder.close()


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"keep_best": "reward/mean", "eval": {"every": 5}}, r"keep_best=.reward/mean.*eval/"),
        ({"keep_best": "eval/mean"}, r"needs eval\.every"),
    ],
)
def test_a_best_checkpoint_that_nothing_could_tell_is_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate({"env": "calculator", **chosen}, RunConfig)


def test_a_killed_run_does_not_go_on_where_its_process_number_is_another_ones(tmp_path: Path) -> None:
    """After a reboot the viewer took any process of that number for the run, and waited for it for ever."""
    lock, file = RunLock(tmp_path), tmp_path / "run.lock"
    written = json.loads(file.read_text())
    for begun, alive in ((written["begun"], True), ("another boot 17", False), ("", True)):
        file.write_text(json.dumps({**written, "begun": begun}))
        found = holder(tmp_path)
        assert found is not None
        assert found.alive is alive
    lock.release()
    assert holder(tmp_path) is None

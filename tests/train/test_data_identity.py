"""A run whose data changed is refused, unless that is accepted, wherever it is gone on with, repeated or compared."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

import agentrl
from agentrl.envs.data import identity
from agentrl.errors import ConfigError
from agentrl.models import tiny
from agentrl.sessions.store.store import Store
from agentrl.train.driver.api import run_evaluate_suite
from agentrl.train.evaluation.suite.compare import compare
from agentrl.train.evaluation.suite.parts import read_suite
from agentrl.train.evaluation.suite.results import read_results
from agentrl.train.record.files import write_atomically
from agentrl.train.record.verify import verify
from agentrl.train.record.verify.data_checks import StoredTasks
from agentrl.train.record.verify.report import Check
from agentrl.train.record.verify.run_checks import _check_weights
from agentrl.types import Message, Session, StepResult, Task
from agentrl.viewer.difference import differences
from agentrl.viewer.runs import run_at
from tests.records.digits import Digits
from tests.records.test_records import unpacked

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "metrics": [],
    "rollout": {"groups_per_step": 2, "group_size": 2, "turn_tokens": 4, "session_tokens": 96},
    "eval": {"tasks": 3},
    "checkpoint_every": 1,
}


class Listed(agentrl.Env):
    """Tasks of a file, one turn; every answer is worth something by chance."""

    stop_strings = tuple(chr(code) for code in range(32, 127))

    def __init__(self, path: str, grows: bool = False) -> None:
        self.path, self.grows = Path(path), grows

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        rows = json.loads(self.path.read_text())
        return [row for row in rows if row["id"].startswith(split)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        if self.grows and task.id.startswith("train"):
            write(self.path, evaluated=9, first=50)
        return f"{task['x']}?"

    def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)

    @agentrl.reward
    def points(self, session: Session) -> float:
        return sum(session.nodes[-1].token_ids) % 8 / 8


def write(path: Path, trained: int = 6, evaluated: int = 3, first: int = 0) -> Path:
    rows = [{"id": f"train{n}", "x": n} for n in range(first, first + trained)]
    path.write_text(json.dumps([*rows, *({"id": f"eval{n}", "x": n} for n in range(first, first + evaluated))]))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny.TinyShape(vocab=263, layers=1, width=8, heads=2, kv_heads=1, mlp=8, context=128)
    return tiny.build(tmp_path_factory.mktemp("model") / "base", [], shape=shape)


agentrl.register("listed", Listed)


def run(tmp_path: Path, model: Path, **settings: Any) -> Path:
    data = write(tmp_path / "rows.json")
    env = {"name": "listed", "path": str(data)}
    agentrl.train(**SMALL | {"env": env, "model": str(model), "steps": 3, "run_dir": str(tmp_path / "run")} | settings)
    return tmp_path / "run"


def faults(folder: Path) -> list[str]:
    return [f"{check.name}: {fault}" for check in verify(folder).checks for fault in check.faults]


def test_a_resumed_run_whose_file_grew_is_refused_untouched_until_that_is_accepted_once(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trained other tasks than it said: indices meant other rows, and `verify` said PASS."""
    folder = run(tmp_path, model)
    assert "data: train has 6 tasks (train0, train1, train2, …" in capsys.readouterr().out
    write(tmp_path / "rows.json", trained=9)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError, match=r"'train' had 6 tasks .* now 9 .*accept_changed_data=true"):
        agentrl.train(resume=str(folder), steps=4)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    agentrl.train(resume=str(folder), steps=4, accept_changed_data=True)
    assert "warning: resume" in capsys.readouterr().out
    agentrl.train(resume=str(folder), steps=5)  # what was accepted is the run's data now
    write(tmp_path / "rows.json")
    with pytest.raises(ConfigError, match=r"had 9 tasks .* now 6"):
        agentrl.train(resume=str(folder), steps=6)
    report = verify(folder)
    assert report.passed, list(report.lines())
    assert any("after step 3, which was accepted" in line for line in report.lines())
    starts = [orjson.loads(line) for line in (folder / "starts.jsonl").read_bytes().splitlines()]
    starts[1]["settings"]["accept_changed_data"] = False
    (folder / "starts.jsonl").write_bytes(b"".join(orjson.dumps(start) + b"\n" for start in starts))
    assert any("data: after step 3: the data changed" in fault for fault in faults(folder))


def other_rows(data: Path) -> None:
    write(data, first=1)


def other_evaluation(data: Path) -> None:
    write(data, evaluated=4)


def other_content(data: Path) -> None:
    data.write_text(data.read_text().replace('"x": 2', '"x": 7'))


@pytest.mark.parametrize("change", [other_rows, other_evaluation, other_content])
def test_a_rerun_and_a_resumption_refuse_each_kind_of_change(
    change: Callable[[Path], None], tmp_path: Path, model: Path
) -> None:
    folder = run(tmp_path, model, steps=1)
    change(tmp_path / "rows.json")
    for settings in ({"resume": str(folder), "steps": 2}, {"rerun": str(folder)}):
        with pytest.raises(ConfigError, match="the data changed since"):
            agentrl.train(**settings)
    assert not (tmp_path / "run-rerun").exists()


def test_a_mixture_whose_part_changed_is_refused_by_the_name_of_the_part(tmp_path: Path, model: Path) -> None:
    mixed = {"name": "mixture", "a": {"name": "listed", "path": str(tmp_path / "rows.json")}}
    mixed["b"] = {"name": "listed", "path": str(write(tmp_path / "b.json"))}
    folder = run(tmp_path, model, env=mixed, steps=1)
    write(tmp_path / "b.json", trained=7)
    with pytest.raises(ConfigError, match="'b/train' had 6 tasks"):
        agentrl.train(resume=str(folder), steps=2)


def test_a_run_of_an_older_agentrl_is_held_to_the_tasks_that_its_ledger_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpacked("63b9345", "sync", tmp_path)
    tasks = Digits().tasks()
    monkeypatch.setattr(Digits, "tasks", lambda self, split="train": [{"id": "new", "start": 1}, *tasks])
    with pytest.raises(ConfigError, match=r"trained task \d+, 'train-\d+', which is '.*' now"):
        agentrl.train(resume=str(folder), steps=3)


def test_evaluations_of_one_run_have_the_same_tasks_though_the_file_changes_meanwhile(
    tmp_path: Path, model: Path
) -> None:
    env = {"name": "listed", "path": str(tmp_path / "rows.json"), "grows": True}
    folder = run(tmp_path, model, env=env, steps=1)
    with Store(folder / "sessions.db", read_only=True) as store:
        found = [{session.task.id for session in store.sessions(phase="eval", step=step)} for step in (0, 1)]
    assert found[0] == found[1]
    assert len(found[0]) == 3


def test_verify_finds_an_index_that_is_two_tasks_and_an_evaluation_of_other_tasks(tmp_path: Path, model: Path) -> None:
    folder = run(tmp_path, model, steps=5)  # ten groups of six tasks
    assert not faults(folder)
    ledger = folder / "groups.jsonl"
    rows = [orjson.loads(line) for line in ledger.read_bytes().splitlines()]
    swapped = [*rows[:-1], {**rows[-1], "task": "train99"}]
    write_atomically(ledger, b"".join(orjson.dumps(row) + b"\n" for row in swapped))
    found = [fault for fault in faults(folder) if fault.startswith("data")]
    assert any("the ledger has the task 'train99'" in fault for fault in found)
    assert any("and is 'train99'" in fault for fault in found)
    write_atomically(ledger, b"".join(orjson.dumps(row) + b"\n" for row in rows))
    with Store(folder / "sessions.db") as store:
        session = next(store.sessions(phase="eval", step=5))
        session.task = Task(id=session.task.id, data={**session.task.data, "x": 99})
        store.save(session, replace=True)
    assert any("evaluates another task as number" in fault for fault in faults(folder))


def test_results_of_changed_data_are_not_compared_unless_that_is_accepted(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.json")
    folders = [tmp_path / name for name in ("one", "grown", "edited")]

    def measure(folder: Path) -> None:
        evaluated = {"tasks": 3, "n": 1}
        env = {"name": "listed", "path": str(data)}
        agentrl.evaluate(env=env, policy="noop", eval=evaluated, run_dir=str(folder))

    measure(folders[0])
    write(data, evaluated=5)
    measure(folders[1])
    write(data)
    other_content(data)
    measure(folders[2])
    one, grown, edited = map(read_results, folders)
    assert one.parts["listed"][identity.KEY]["eval"]["tasks"] == 3
    with pytest.raises(ConfigError, match=r"in listed, the split 'eval' had 3 tasks .* now 5"):
        compare(one, grown)
    with pytest.raises(ConfigError, match="other content under the same ids"):
        compare(one, edited)
    (part,) = compare(one, edited, accept_changed_data=True).parts
    assert (part.tasks, part.unpaired) == (2, 1)
    for results in (one, edited):  # as an older agentrl wrote them
        del results.parts["listed"][identity.KEY]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="1 tasks have the same id and other content, such as 'eval2'"):
        compare(one, edited)


@pytest.mark.usefixtures("in_tmp_path")
def test_a_suite_goes_on_with_changed_data_only_where_that_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It measured the changed tasks, and put the result in the place of the one before, without a word."""
    data = write(tmp_path / "rows.json")
    (tmp_path / "suite.yaml").write_text(f"parts: {{a: {{env: {{name: listed, path: {str(data)!r}}}}}}}")

    def measure(**settings: Any) -> int:
        suite = read_suite("suite.yaml", {"policy": "noop", "run_dir": "out", **settings})
        return int(run_evaluate_suite(suite).parts["a"]["tasks"])

    assert measure() == measure() == 3
    write(data, evaluated=4)
    before = (tmp_path / "out" / "result.json").read_bytes()
    with pytest.raises(ConfigError, match=r"'eval' had 3 tasks .* now 4 .*accept_changed_data=true"):
        measure()
    assert (tmp_path / "out" / "result.json").read_bytes() == before
    assert measure(accept_changed_data=True) == measure() == 4
    assert "warning" in capsys.readouterr().out


def test_diff_compares_no_tasks_of_runs_whose_data_differs(tmp_path: Path) -> None:
    """Tasks of one id were taken for the same, whatever their data was."""
    data = write(tmp_path / "rows.json")
    for name in ("one", "other"):
        env = {"name": "listed", "path": str(data)}
        agentrl.evaluate(env=env, policy="noop", eval={"tasks": 3}, run_dir=str(tmp_path / name))
        other_content(data)
    shown = [str(part) for part in differences(run_at(tmp_path / "one"), run_at(tmp_path / "other"), 100)]
    assert any("not compared, since the data differs: the split 'eval' had other content" in text for text in shown)


def test_verify_keeps_of_a_groups_task_a_digest_however_large_it_is() -> None:
    """A run of 100,000 groups with tasks of 10 kB had all of them in memory at once."""
    tasks = StoredTasks()
    for number in range(50):
        about: dict[str, Any] = {"group": f"g{number}", "phase": ("train", "eval")[number % 2], "group_number": number}
        tasks.add(Session(f"s{number}", Task(id=str(number), data={"text": "x" * 10_000}), step=1, **about))
    assert len(tasks.groups) == len(tasks.evaluated) == 25
    assert len(pickle.dumps(tasks)) < 10_000


def test_verify_goes_through_what_was_trained_once_however_many_steps_there_are() -> None:
    """It did so for each step, so that a run of 10,000 took 50 million looks."""
    looked, last = 0, 60

    class Counted(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            raise AssertionError("gone through by index")

        def __iter__(self) -> Any:
            for each in super().__iter__():
                nonlocal looked
                looked += 1
                yield each

        def __reversed__(self) -> Any:
            return iter([*self][::-1])

    trained = Counted((step, SimpleNamespace(version=step - 1 + (step == 9))) for step in range(1, last + 1))
    rows = [{"step": step, "version": step} for step in range(1, last + 1)]
    settings = SimpleNamespace(data=None)
    check = Check("weights", "")
    _check_weights(
        cast(Any, SimpleNamespace(rows=rows, trained=trained, published=[], settings=lambda _: settings)), check
    )
    found = [fault for fault in check.faults if "given to no engine" not in str(fault)]
    assert len(found) == 1, found
    assert "step 9: the trainer had version 9, and after the step before version 8" in str(found[0])
    assert looked == last

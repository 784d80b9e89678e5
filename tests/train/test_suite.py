"""Suites: one policy on several tasks, kept by content, resumed, and compared by a paired test."""

from __future__ import annotations

import asyncio
import json
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentrl.envs.episode import record
from agentrl.errors import ConfigError, EnvError
from agentrl.overrides import spread
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.evaluation.suite import report
from agentrl.train.evaluation.suite.commands import show_table
from agentrl.train.evaluation.suite.compare import compare
from agentrl.train.evaluation.suite.parts import read_suite
from agentrl.train.evaluation.suite.play import run_suite
from agentrl.train.evaluation.suite.results import Results, read_results
from tests.command_line import run_agentrl

pytestmark = pytest.mark.slow

ENVIRONMENT = '''
import agentrl

class Sums(agentrl.Env):
    """Add."""
    splits = ("eval",)

    def __init__(self, shift: int = 0, broken: int = -1, tasks: int = 5) -> None:
        self.shift, self.broken, self.count = shift, broken, tasks

    def tasks(self, split="eval"):
        return [{"id": f"t{n}", "n": n} for n in range(self.count)]

    def reset(self, task, *, seed=None):
        self.n = task["n"]
        open("played.txt", "a").write(f"{self.n}\\n")
        if self.n == self.broken:
            raise ValueError("planted")
        return f"What is {self.n} + 1?"

    @agentrl.reward
    def right(self, session) -> float:
        return float(session.answer == str(self.n + 1))

    def expert(self, messages):
        return str(self.n + 1 + (self.shift if self.n < 2 else 0))
'''


@pytest.fixture
def here(tmp_path: Path, in_tmp_path: None) -> Path:
    (tmp_path / "sums.py").write_text(ENVIRONMENT)
    return tmp_path


def suite(text: str, **words: Any) -> Any:
    Path("two.yaml").write_text(text)
    return read_suite("two.yaml", spread({"policy": "expert", **words}))


def run(chosen: Any) -> tuple[Results, str]:
    file = StringIO()
    return asyncio.run(run_suite(chosen, Display(Console(file=file, width=200)))), file.getvalue()


def played() -> int:
    file = Path("played.txt")
    count = len(file.read_text().splitlines()) if file.exists() else 0
    file.unlink(missing_ok=True)
    return count


TWO = """
eval.n: 2
parts:
  right: {env: "sums.py:Sums"}
  wrong: {env: {name: "sums.py:Sums", shift: 1}, eval.tasks: 4}
"""


def test_a_suite_measures_each_part_and_the_same_command_measures_nothing_again(here: Path) -> None:
    results, said = run(suite(TWO))
    assert {name: (part["mean"], part["tasks"], part["sessions"]) for name, part in results.parts.items()} == {
        "right": (1.0, 5, 10),
        "wrong": (0.5, 4, 8),
    }
    assert "2 parts, 2 to measure" in said
    assert played() == 18
    again, said = run(suite(TWO))
    assert (again.parts, played()) == (results.parts, 0)
    assert "2 parts, 0 to measure" in said
    assert results.path is not None
    for name in ("result.json", "result.md", "result.png"):
        assert (results.path / name).stat().st_size
    assert read_results(results.path).parts == results.parts


def test_only_what_changed_is_measured_and_more_samples_are_added_to_those_there_are(here: Path) -> None:
    first, _ = run(suite(TWO))
    played()
    run(suite(TWO.replace("shift: 1", "shift: 2")))
    assert played() == 8, "the part whose settings changed, and no other"
    more, _ = run(suite(TWO, **{"eval.n": 3}))
    assert played() == 5 + 4, "one more sample of each task"
    assert more.parts["right"]["sessions"] == 15
    assert more.path == first.path
    other, _ = run(suite(TWO, policy="noop"))
    assert other.path != first.path
    assert played() == 18


def test_what_an_interrupted_suite_has_played_is_kept(here: Path) -> None:
    broken = TWO.replace("shift: 1", "broken: 3").replace("eval.tasks: 4", "eval.tasks: 5")
    with pytest.raises(EnvError) as raised:
        run(suite(broken))
    assert "in the suite's part 'wrong'" in "".join(raised.value.__notes__)
    (folder,) = Path("runs").glob("suite-two-*")
    kept = {}
    for database in folder.glob("*/sessions.db"):
        with Store(database, read_only=True) as store:
            kept[database.parent.name.split("-")[0]] = store.counts().get("completed", 0)
    assert kept["right"] == 10
    played()
    (here / "sums.py").write_text(ENVIRONMENT.replace("== self.broken", "== 99"))
    run(suite(broken))
    assert played() == 20, "the environment's code is part of the content"


WALK = '''
import pathlib
import signal
import agentrl

class Walk(agentrl.Env):
    """Eight steps."""
    splits = ("eval",)

    def tasks(self, split="eval"):
        return [{"id": f"t{n}", "n": n} for n in range(4)]

    def reset(self, task, *, seed=None):
        self.at = 10 * task["n"]
        return "Go."

    def step(self, message):
        self.at += 1
        open("played.txt", "a").write(f"{self.at}\\n")
        if self.at == 17 and pathlib.Path("interrupt").exists():
            pathlib.Path("interrupt").unlink()
            signal.raise_signal(signal.SIGINT)
        told = [agentrl.Message(role="user", content=f"at {self.at}")]
        return agentrl.StepResult(told, reward=1 / 8, terminated=self.at % 10 == 8)

    def expert(self, messages):
        return f"from {self.at}"

    def state(self):
        return self.at

    def restore(self, task, state):
        self.at = state
'''


def test_a_suite_that_is_interrupted_in_the_middle_of_a_session_goes_on_there(here: Path) -> None:
    """By hand: three times Ctrl-C with a model on `engine=local`, and every session was that of a run in one go."""
    (here / "walk.py").write_text(WALK)
    text = 'rollout.save_states: always\nparts:\n  walk: {env: "walk.py:Walk"}\n'
    whole, _ = run(suite(text, run_dir="whole"))
    assert played() == 4 * 8
    Path("interrupt").touch()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(suite(text, run_dir="cut"))
    finally:
        signal.signal(signal.SIGINT, before)
    again, _ = run(suite(text, run_dir="cut"))
    assert 4 * 8 <= played() <= 4 * 9, "at most the step under way of each session was taken twice"
    assert again.parts["walk"]["scores"] == whole.parts["walk"]["scores"]
    (one,), (other,) = Path("whole").glob("*/sessions.db"), Path("cut").glob("*/sessions.db")
    with Store(one, read_only=True) as uncut, Store(other, read_only=True) as cut:
        assert [record(session) for session in uncut.sessions()] == [record(session) for session in cut.sessions()]


def test_a_suites_mistakes_are_named_with_the_part_before_anything_is_played(here: Path) -> None:
    for text, said in (
        ("eval.n: 2", "has no `parts`"),
        ("parts: {}", "has no `parts`"),
        ("env: calculator\nparts: {a: calculator}", "env= stands beside `parts`"),
        ("parts: {a: {env: calculator, model: tiny}}", "part 'a': model is no setting of a part"),
        ("parts: {a: {env: calculator, eval.m: 2}}", "part 'a'.*eval.m"),
        ("parts: {a: {eval.n: 2}}", "part 'a': the setting 'env' is required"),
        ("parts: {a: {env: calculator, rollout.group_size: 2}}", "part 'a': rollout.group_size is for training"),
        ("parts: {a b: calculator}", "a part's name is made of"),
    ):
        with pytest.raises(ConfigError, match=said):
            suite(text)
    with pytest.raises(ConfigError, match=r"eval\.split='tset': Calculator has no such split") as raised:
        run(suite(TWO + "  third: {env: calculator, eval.split: tset}\n"))
    assert "in the suite's part 'third'" in "".join(raised.value.__notes__)
    assert not Path("runs").exists()


def result(name: str, scores: dict[str, list[float]], part: str = "a", digest: str = "d") -> Results:
    listed = [{"task": task, "digest": digest, "scores": own} for task, own in scores.items()]
    return Results(name, name, {part: {"scores": listed, "mean": 0.0, "worked": True}})


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.lists(st.sampled_from([0.0, 1.0]), max_size=3)))
def test_a_result_is_never_better_or_worse_than_itself(scores: dict[str, list[float]]) -> None:
    if not any(scores.values()):
        with pytest.raises(ConfigError, match="no task in common"):
            compare(result("x", scores), result("y", scores))
        return
    (part,) = compare(result("x", scores), result("y", scores)).parts
    assert (part.difference, part.p, part.changes, part.verdict(0.05)) == (0.0, 1.0, [], "")


def test_a_comparison_pairs_tasks_by_id_and_data_and_lists_those_that_changed() -> None:
    before = result("old", {f"t{n}": [1.0, 1.0] for n in range(10)} | {"gone": [1.0], "unscored": []})
    scores = {f"t{n}": [0.0, 1.0] if n < 8 else [1.0] for n in range(10)} | {"new": [0.0]}
    found = compare(before, result("new", scores))
    (part,) = found.parts
    assert (part.tasks, part.unpaired, part.before, part.after) == (10, 2, 1.0, 0.6)
    assert part.p == pytest.approx(2 / 2**8, abs=0.003)
    assert part.low < part.difference < part.high < 0
    assert [change.task for change in part.changes] == [f"t{n}" for n in range(8)]
    assert (found.worse, part.verdict(0.05)) == (["a"], "worse")
    assert compare(result("new", scores), before).parts[0].verdict(0.05) == "better"
    assert "a: 8 worse: t0 1.00 to 0.50" in next(iter(report.comparison_lines(found)))
    with pytest.raises(ConfigError, match="no task in common"):
        compare(before, result("other", scores, digest="e"), accept_changed_data=True)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_has_every_number_whole_at_any_width(width: int) -> None:
    """A terminal of 80 columns showed "1.0…" for a mean, and "wor…" for a verdict."""
    long = "a-part-whose-name-takes-most-of-a-line-of-the-terminal"
    before = result("old", {f"t{n}": [1.0] for n in range(120)}, part=long)
    after = result("new", {f"t{n}": [0.0 if n % 3 else 1.0] for n in range(120)}, part=long)
    terminal = Console(width=width, file=StringIO(), force_terminal=True, color_system=None)
    show_table(report.comparison_table(compare(before, after)), terminal)
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    for number in ("1.000", "0.333", "-0.667", "[-0.752, -0.577]", "0.0002", "120", "+0 -80", "worse"):
        assert number in shown
    assert max(map(len, shown.splitlines())) <= max(width, 80) or width < 80


def test_a_column_that_no_part_fills_is_left_out() -> None:
    columns = report.comparison_table(compare(result("x", {"t": [1.0]}), result("y", {"t": [1.0]}))).columns
    assert [column.header for column in columns] == ["part", "before", "after", "difference", "p", "tasks", "changed"]


def test_over_many_parts_a_single_chance_finding_is_not_called_worse() -> None:
    six = {f"t{n}": [1.0] for n in range(6)}
    lost = {name: [0.0] for name in six}
    one, other = result("x", six), result("y", lost)
    assert compare(one, other).worse == ["a"]
    parts = {f"p{n}": one.parts["a"] for n in range(9)}
    many = Results("x", "x", {**one.parts, **parts}), Results("y", "y", {**other.parts, **parts})
    assert compare(*many).worse == []


def test_the_command_ends_with_3_where_a_policy_is_worse_than_its_baseline(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("two.yaml").write_text("parts: {a: {env: {name: 'sums.py:Sums', tasks: 12}}}")
    assert run_agentrl("eval", "suite=two.yaml", "policy=expert", "run_dir=good") == 0
    assert run_agentrl("eval", "suite=two.yaml", "policy=noop", "run_dir=bad", "compare=good/result.json") == 3
    assert "worse than the baseline: a" in capsys.readouterr().err
    assert run_agentrl("eval", "suite=two.yaml", "policy=expert", "run_dir=good", "compare=bad") == 0
    assert run_agentrl("compare", "good", "bad", "--markdown") == 3
    assert "| a | 1.000 | 0.000 | -1.000 |" in capsys.readouterr().out
    assert run_agentrl("compare", "good", "nowhere") == 2
    assert run_agentrl("eval", "suite=two.yaml", "policy=noop", "compare=missing.json") == 2
    Path("broken.json").write_text(json.dumps({"mean": 1}))
    assert run_agentrl("compare", "good", "broken.json") == 2
    assert "is no result of agentrl eval" in capsys.readouterr().err

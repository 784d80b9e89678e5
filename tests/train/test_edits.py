"""Scores that people change: the measured ones stay, the history says who, when and why, and every reader says so."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.cli import app
from agentrl.errors import ConfigError, InvalidInput, StoreError, UnknownName
from agentrl.rollout.episodes import edits
from agentrl.sessions.store.search import search
from agentrl.sessions.store.store import Store
from agentrl.train.evaluation.suite.results import read_results
from agentrl.train.record.verify import verify
from agentrl.viewer.difference import tasks as differing
from agentrl.viewer.listing import Order, filters, matching
from agentrl.viewer.replay_process import Replays
from agentrl.viewer.report import report
from agentrl.viewer.runs import run_at
from tests.viewer.test_app import asked, client

pytestmark = pytest.mark.slow


class Sums(agentrl.Env):
    """Add; the expert can't do the first task."""

    splits = ("eval",)
    max_turns = 1

    def tasks(self, split: str = "eval") -> Any:
        return [{"id": f"t{n}", "n": n} for n in range(4)]

    def reset(self, task: Any, *, seed: int | None = None) -> str:
        self.n = task["n"]
        return f"What is {self.n} + 1?"

    @agentrl.reward
    def right(self, session: Any) -> float:
        return float(session.answer == str(self.n + 1))

    def expert(self, messages: Any) -> str:
        return str(self.n + 1 if self.n else "one")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edits") / "run"
    agentrl.evaluate(Sums, policy="expert", run_dir=str(folder), eval={"n": 2})
    return folder


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "run"))


def of_task(run: Path, task: str) -> list[str]:
    with Store(run / "sessions.db", read_only=True) as store:
        return sorted(session.id for session in store.sessions() if session.task.id == task)


def test_an_edited_score_changes_the_result_as_the_same_measured_score_would(run: Path):
    for session in of_task(run, "t0"):
        edits.add(run, session, 1.0, "a word is right too", "Ann")
    (part,) = read_results(run).parts.values()
    assert (part["mean"], part["pass_at"], part["pass_hat"]) == (1.0, {"1": 1.0, "2": 1.0}, {"1": 1.0, "2": 1.0})
    assert [task["scores"] for task in part["scores"]] == [[1.0, 1.0]] * 4


def test_what_was_measured_stays_and_each_change_is_in_the_history(run: Path):
    before = {file.name: file.read_bytes() for file in run.glob("*.json*")}
    session = of_task(run, "t0")[0]
    edits.add(run, session, 0.5, "half", "Ann")
    edits.add(run, session, 1.0, "whole", "Ben")
    history = edits.read(run)
    assert [(edit.was, edit.score, edit.who, edit.why) for edit in history] == [
        (0.0, 0.5, "Ann", "half"),
        (0.5, 1.0, "Ben", "whole"),
    ]
    assert {name: (run / name).read_bytes() for name in before} == before
    assert run_at(run).shown_evaluation()["mean"] == 0.875  # type: ignore[index]


def test_verification_passes_and_names_what_was_edited_and_fails_where_the_history_is_no_sessions(run: Path):
    session = of_task(run, "t0")[0]
    edit = edits.add(run, session, 1.0, "a word is right too", "Ann")
    found = verify(run)
    assert found.passed
    assert f"edited: {edit}" in list(found.lines())
    file = run / edits.FILE
    file.write_bytes(file.read_bytes().replace(b'"was":0.0', b'"was":0.25'))
    assert not verify(run).passed
    file.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"edits.jsonl.* is damaged"):
        edits.read(run)


async def test_the_viewer_the_report_and_the_comparison_show_an_edit(run: Path, measured: Path):
    session = of_task(run, "t0")[0]
    ended = CliRunner().invoke(app, ["edit-score", f"{run}/{session}", "1", "--why", "a <word>", "--who", "Ann"])
    assert ended.exit_code == 0, ended.output
    assert "0 to 1, Ann" in ended.output
    (edit,) = (await asked(run, "session", run="run", id=session))["edits"]
    assert (edit["was"], edit["score"], edit["why"]) == (0.0, 1.0, "a <word>")
    rows = (await asked(run, "sessions", run="run"))["rows"]
    assert {row["id"]: row["edits"] for row in rows if row["edits"]} == {session: [edit]}
    assert (await asked(run, "run", run="run"))["evaluation"]["edits"] == [edit]
    assert b"a &lt;word&gt;" in report(run_at(run))
    assert report(run_at(run)).count(b"(k=2)") == 2
    told = CliRunner().invoke(app, ["compare", str(measured), str(run)]).output
    assert "t0 0.00 to 0.50" in told
    assert "after edited: " in told


def test_a_suites_part_has_the_edits_of_its_folder(run: Path, tmp_path: Path):
    part = orjson.loads((run / "result.json").read_bytes())
    suite = tmp_path / "suite"
    shutil.copytree(run, suite / "a-1")
    (suite / "result.json").write_bytes(orjson.dumps({"suite": "s", "policy": "expert", "parts": {"a": part}}))
    edits.add(suite / "a-1", of_task(run, "t0")[0], 1.0, "right", "Ann")
    assert read_results(suite).parts["a"]["mean"] == 0.875


@pytest.mark.parametrize(("score", "why"), [(float("nan"), "odd"), (1.0, " ")])
def test_an_edit_needs_a_number_and_a_reason(run: Path, score: float, why: str):
    with pytest.raises(InvalidInput):
        edits.add(run, of_task(run, "t0")[0], score, why)


def test_only_sessions_of_an_evaluation_that_has_ended_are_edited(run: Path):
    assert CliRunner().invoke(app, ["edit-score", f"{run}/nobody"]).exception.__class__ is UnknownName
    with pytest.raises(UnknownName):
        edits.add(run, "nobody", 1.0, "right")
    (run / "result.json").unlink()
    with pytest.raises(ConfigError, match="has no result of an evaluation"):
        edits.add(run, of_task(run, "t0")[0], 1.0, "right")


def test_filters_orders_counts_and_means_are_of_the_current_scores_and_measured_ones_keep_a_name(run: Path):
    """Conditions were over measured scores, beside lists that showed the edited ones."""
    first, second = of_task(run, "t0")
    edits.add(run, first, 0.25, "almost", "Ann")
    edits.add(run, first, 0.75, "nearly", "Ben")

    def found(*words: str) -> list[tuple[str, float | None]]:
        wanted = filters(run / "sessions.db", words)
        return [(row.id, row.score) for row in matching(run / "sessions.db", wanted, Order("score", False, 9))]

    assert found("where=score < 1") == [(second, 0.0), (first, 0.75)]
    assert found("score=0.5..0.9") == found("where=measured == 0 and score > 0") == [(first, 0.75)]
    assert sorted(found("measured=0..0")) == sorted([(first, 0.75), (second, 0.0)])
    with Store(run / "sessions.db", read_only=True) as store:
        assert store.mean_scores("task", {"task": "t0"}) == {"t0": (0.375, 2)}
        assert store.load(first).score == 0.0, "what was measured stays"
        edits.add(run, second, 1.0, "right", "Ann")
        assert store.counts("score") == {0.75: 1, 1.0: 7}, "a store that is open sees what is edited meanwhile"
        assert store.counts("measured") == {0.0: 2, 1.0: 6}
    assert [row.score for row in search(run / "sessions.db", "What is 0", sort="score").rows] == [0.75, 1.0]


def test_the_tasks_that_differ_and_the_pages_of_a_report_have_current_scores(run: Path, measured: Path):
    edits.add(run, of_task(run, "t0")[0], 1.0, "right", "Ann")
    _, changed = differing(run_at(measured), run_at(run))
    assert [(each.task, each.scores) for each in changed] == [("t0", (0.0, 0.5))]
    assert b"score 1 (edited; measured: score 0)" in report(run_at(run))


async def test_the_viewers_page_changes_a_score_and_nobody_elses_does(run: Path):
    session = of_task(run, "t0")[0]
    asked_for: dict[str, Any] = {"params": {"run": "run", "id": session}}
    sent = {"score": 0.5, "was": 0.0, "why": " half ", "who": "Ann"}
    own = {"origin": "http://127.0.0.1"}
    async with client(run, replays=Replays()) as viewer:
        assert (await viewer.get("/api/session", **asked_for)).json()["editable"]
        refused = [{}, {"origin": "http://evil.example"}, {**own, "sec-fetch-site": "cross-site"}]
        for headers in refused:
            assert (await viewer.post("/api/score", json=sent, headers=headers, **asked_for)).status_code == 403
        for odd in ({"why": " "}, {"who": ""}, {"score": None}, {"more": 1}):
            assert (await viewer.post("/api/score", json=sent | odd, headers=own, **asked_for)).status_code == 400
        answer = await viewer.post("/api/score", json=sent, headers=own, **asked_for)
        assert (answer.status_code, answer.json()["why"]) == (200, "half")
        late = await viewer.post("/api/score", json=sent, headers=own, **asked_for)
        assert (late.status_code, "meanwhile" in late.json()["error"]) == (400, True)
    async with client(run, replays=Replays(), token="a" * 20) as viewer:
        assert (await viewer.post("/api/score", json=sent, headers=own, **asked_for)).status_code == 401
    async with client(run) as viewer:
        assert (await viewer.post("/api/score", json=sent, headers=own, **asked_for)).status_code == 404
        assert not (await viewer.get("/api/session", **asked_for)).json()["editable"]
    assert [(edit.was, edit.score, edit.who) for edit in edits.read(run)] == [(0.0, 0.5, "Ann")]


def test_edits_at_once_follow_each_other_in_the_history(run: Path):
    session = of_task(run, "t0")[0]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: edits.add(run, session, number + 1.0, "odd", "Ann"), range(24)))
    scores = [0.0, *(edit.score for edit in edits.read(run))]
    assert [edit.was for edit in edits.read(run)] == scores[:-1]

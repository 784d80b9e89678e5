"""Runs in the terminal: `agentrl sessions`, `top`, `diff` and `report`, also of runs that hold hostile text."""

from __future__ import annotations

import json
import os
import re
import time
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.common.untrusted import visible_text
from agentrl.sessions.store.store import Store
from agentrl.train.record.lock import RunLock
from agentrl.types import Session, Status, Task
from agentrl.viewer import report as report_module
from agentrl.viewer.attach import attach, panel
from agentrl.viewer.difference import differences, metrics, settings, tasks
from agentrl.viewer.listing import Order, matching, table
from agentrl.viewer.report import report
from agentrl.viewer.runs import run_at
from tests.command_line import run_agentrl
from tests.sessions.exported import from_jsonl
from tests.viewer.recorded import HOSTILE, write_run

SECRET = "sk-planted-secret"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey, and what it would hide."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command: its exit code, and what it printed."""

    def run(*words: object) -> tuple[Any, str]:
        code, said = run_agentrl(*words), capsys.readouterr()
        return code, said.out + said.err

    return run


def listed(command: Any, *words: object) -> list[dict[str, Any]]:
    code, text = command("sessions", *words, "--json")
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_demonstrations_are_among_the_worst_sessions_only_where_asked_for(tmp_path: Path, command: Any) -> None:
    run = write_run(tmp_path / "run", steps=1, hostile=False)
    with Store(run / "sessions.db") as store:
        store.save(Session("demo", Task(id="shown"), phase="demo", status=Status.COMPLETED, rewards={}, reward=-9.0))
    assert "demo" not in [row["id"] for row in listed(command, run, "--worst", 50)]
    assert [row["id"] for row in listed(command, run, "--worst", 50, "phase=demo")] == ["demo"]
    assert "demo" in [row["id"] for row in listed(command, run)]


def test_sessions_are_the_worst_and_the_best_of_those_that_fit_the_filters(runs: Path, command: Any) -> None:
    with Store(runs / "first" / "sessions.db", read_only=True) as store:
        page = store.find({"phase": "train", "step": list(range(10, 13))}, limit=100).rows
    scores = sorted(row.score for row in page if row.score is not None)
    worst = listed(command, runs / "first", "phase=train", "step=10..12", "--worst", 5)
    best = listed(command, runs / "first", "phase=train", "step=10..12", "--best", 5)
    assert [row["score"] for row in worst] == scores[:5]
    assert [row["score"] for row in best] == scores[::-1][:5]
    assert {row["step"] for row in worst + best} <= {10, 11, 12}


def test_sessions_that_fit_are_exported_whole_into_a_file_of_a_known_kind(
    runs: Path, command: Any, tmp_path: Path
) -> None:
    code, text = command("sessions", runs / "first", "step=10..12", "--export", tmp_path / "some.jsonl")
    with Store(runs / "first" / "sessions.db", read_only=True) as store:
        expected = [store.load(row.id) for row in store.find({"step": [10, 11, 12]}, limit=1000).rows]
    assert (code, len(expected) > 20) == (0, True), text
    assert list(from_jsonl(tmp_path / "some.jsonl")) == expected
    code, text = command("sessions", runs / "first", "--export", tmp_path / "some.csv")
    assert code
    assert "must end in .jsonl or .parquet" in text


@pytest.mark.slow
def test_sessions_are_found_by_a_condition(runs: Path, command: Any) -> None:
    condition = "score == 0 and data.a > 40 or turns >= 3"
    found = listed(command, runs / "first", f"where={condition}", "--limit", 1000)
    with Store(runs / "first" / "sessions.db", read_only=True) as store:
        sessions = [store.load(row.id) for row in store.find(limit=1000).rows]
        turns = {row.id: row.turns for row in store.find(limit=1000).rows}
    wanted = [s.id for s in sessions if (s.score == 0 and s.task.data.get("a", 0) > 40) or turns[s.id] >= 3]
    assert 0 < len(wanted) < len(sessions)
    assert sorted(row["id"] for row in found) == sorted(wanted)
    code, text = command("sessions", runs / "first", "where=score <")
    assert code == 2
    assert "is no condition, such as" in text


@pytest.mark.slow
def test_sessions_are_found_by_a_text_in_a_tool_call_or_its_answer(runs: Path, command: Any) -> None:
    found = listed(command, runs / "first", "--grep", "DIVISION by zero", "--limit", 7)
    assert len(found) == 7
    assert all(row["tool_errors"] for row in found)
    assert listed(command, runs / "first", "--grep", "nobody wrote this") == []
    assert len(listed(command, runs / "first", "tool=calculator", "--limit", 500)) == 240
    assert listed(command, runs / "first", "trained=3", "--limit", 100) == listed(
        command, runs / "first", "step=2", "phase=train", "group~=train", "--limit", 100
    )


@pytest.mark.slow
def test_a_table_of_sessions_has_their_whole_ids_at_any_width(
    runs: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = command("sessions", runs / "first", "--sort", "turns", "--limit", 3)
    assert code == 0
    assert len(text.splitlines()) == 4
    assert re.search(r"^train-\d+\.0-\d ", text, re.MULTILINE)
    assert command("sessions", runs / "first")[1].startswith("242 sessions: ")
    assert "no session fits" in command("sessions", runs / "first", "step=99")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["colour=red"], ["unknown column 'colour'"]),
        (["limit=3"], ["'limit=3' is no filter", "COLUMN=VALUE", "trained=STEP"]),
        (["step"], ["'step' is no filter"]),
        (["score=low..high"], ["score: 'low' is no number"]),
        (["trained=few"], ["trained='few' is no step"]),
        (["--worst", "2", "--best", "2"], ["give one of them"]),
        (["--worst", "0"], ["--worst", "1"]),
    ],
)
def test_a_filter_or_an_order_that_is_none_is_named(
    words: list[str], says: list[str], runs: Path, command: Any
) -> None:
    code, text = command("sessions", runs / "first", *words)
    assert code == 2
    assert all(part in text for part in says), text


@pytest.mark.parametrize("verb", ["top", "report", "diff"])
def test_a_folder_that_is_no_runs_is_refused_with_the_runs_beside_it(verb: str, runs: Path, command: Any) -> None:
    code, text = command(verb, *[runs / "frist"] * (1 + (verb == "diff")))
    assert code == 2
    assert "did you mean" in text
    assert str(runs / "first") in text


@pytest.mark.slow
def test_nothing_that_a_session_holds_reaches_the_terminal_as_a_command(runs: Path, command: Any) -> None:
    hostile = ("sessions", runs / "first", "group=hostile")
    others = ("top", runs / "first"), ("diff", runs / "first", runs / "below" / "slow")
    for words in (hostile, (*hostile, "--json"), *others):
        code, text = command(*words)
        assert code == 0, text
        assert OBEYED.findall(text) == [], words
        assert SECRET not in text
    (row,) = listed(command, *hostile[1:])
    assert row["task"] == HOSTILE
    assert r"\x1b[31" in command(*hostile)[1]


# --------------------------------------------------------------------------------------------------- top


def test_a_finished_run_is_shown_once_and_not_waited_for(runs: Path, command: Any) -> None:
    code, text = command("top", runs / "first")
    assert code == 0
    step, end = text.splitlines()
    assert step.startswith("   30/30  reward ")
    assert len(step) < 80
    assert end.startswith("first: finished (calculator · tiny · grpo); sessions: ")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.yaml", b"env: [", "run: damaged ('RUN/config.yaml' is not YAML: line 1"),
        ("config.yaml", b"\xff\xfe", "run: damaged ('RUN/config.yaml' is no text in UTF-8"),
        ("result.json", b'{"mean": 1, "scores": [1]}', "run: damaged ('RUN/result.json' is no result of agentrl eval"),
        ("sessions.db", b"", "sessions: can't be read: 'RUN/sessions.db' is empty"),
        ("sessions.db", b"SQLite format 3\0" + bytes(200), "sessions: can't be read: session store 'RUN/sessions.db'"),
    ],
)
def test_a_run_that_can_not_be_read_is_shown_with_the_reason(
    name: str, content: bytes, says: str, tmp_path: Path, command: Any
) -> None:
    """It was "stopped ()"."""
    folder = write_run(tmp_path / "run", steps=2, hostile=False)
    (folder / name).write_bytes(content)
    code, text = command("top", folder)
    assert code == 0
    assert says.replace("RUN", str(folder)) in text.splitlines()[-1]


def test_a_running_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=3, hostile=False)
    rows = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(rows[0])
    lock, file = RunLock(folder), StringIO()

    class Slow(Console):
        def print(self, *words: Any, **options: Any) -> None:  # the run goes on while each line is printed
            super().print(*words, **options)
            if rows:
                (folder / "metrics.jsonl").open("ab").write(rows.pop(0))
            else:
                lock.release()

    rows.pop(0)
    attach(run_at(folder), Slow(file=file), interval=0.01)
    steps = [line.split()[0] for line in file.getvalue().splitlines()]
    assert steps == ["1/3", "2/3", "3/3", "run:"]


def test_tasks_of_two_environments_are_not_compared_by_their_ids(tmp_path: Path, command: Any) -> None:
    runs = [write_run(tmp_path / name, steps=2, hostile=False) for name in ("one", "other")]
    settings = runs[1] / "config.yaml"
    settings.write_text(settings.read_text().replace("calculator", "castle"))
    code, text = command("diff", *runs)
    assert code == 0
    assert "tasks: not compared" in text
    assert " better, " not in text


def test_runs_are_compared_also_where_one_has_no_sessions_yet(tmp_path: Path, command: Any) -> None:
    runs = [write_run(tmp_path / name, steps=2, hostile=False) for name in ("one", "other")]
    (runs[1] / "sessions.db").unlink()
    code, text = command("diff", *runs)
    assert code == 0
    assert "tasks: not compared: other: no sessions are stored there" in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_panel_of_a_run_is_as_wide_as_the_terminal(width: int, runs: Path) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(panel(run_at(runs / "first")))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert {len(line) for line in lines} == {width}
    assert "first: finished" in lines[0]
    assert any("30/30" in line for line in lines)


def test_workers_that_are_silent_are_named_while_the_run_goes_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=1, hostile=False)
    (folder / "logs").mkdir()
    said = {"name": "environments on 10.0.0.7", "process": 4711, "since": time.time() - 120}
    (folder / "logs" / "environments-1.silent").write_text(json.dumps(said))
    (folder / "logs" / "rewards-0.silent").write_text("[]")  # is being written
    assert "silent" not in panel(run_at(folder)).detail
    lock = RunLock(folder)
    found = panel(run_at(folder)).detail
    lock.release()
    assert found.startswith("environments on 10.0.0.7 (environments-1, process 4711) has been silent for 1")


# -------------------------------------------------------------------------------------------------- diff


def test_a_difference_has_the_settings_and_numbers_that_differ_and_no_others(runs: Path) -> None:
    first, slow = run_at(runs / "first"), run_at(runs / "below" / "slow")
    assert settings(first, slow) == {"algo.lr": (1e-3, 4e-4)}
    numbers = metrics(first, slow)
    assert numbers["reward/mean"][0] > numbers["reward/mean"][1]
    assert "reward/form" not in numbers
    assert (settings(first, first), metrics(first, first), tasks(first, first)[1]) == ({}, {}, [])


def test_tasks_that_changed_are_those_whose_mean_score_did(runs: Path) -> None:
    first, slow = run_at(runs / "first"), run_at(runs / "below" / "slow")
    said, found = tasks(first, slow)
    assert said == "all training sessions"
    changes = [abs(each.change) for each in found]
    assert changes == sorted(changes, reverse=True)
    assert min(changes) > 0
    worst = found[0]
    for run, score, count in zip((first, slow), worst.scores, worst.sessions, strict=True):
        rows = run.store().find({"phase": "train", "task": worst.task}, limit=100).rows
        scores = [row.score for row in rows if row.score is not None]
        assert (sum(scores) / len(scores), len(scores)) == (pytest.approx(score), count)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_of_sessions_fits_the_terminal_and_has_every_column(width: int, runs: Path) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(table(matching(runs / "first" / "sessions.db", {"group": ["hostile", "train-3.0"]}, Order())))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert all(name in text for name in ("session", "step", "score", "turns", "ended", "agent_error", "train-3.0-0"))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_difference_fits_the_terminal(width: int, runs: Path) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    for part in differences(run_at(runs / "first"), run_at(runs / "below" / "slow"), width):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert "reward/mean by step" in text
    assert "algo.lr" in text


# ------------------------------------------------------------------------------------------------ report


class Page(HTMLParser):
    """What a browser would read in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_is_one_page_without_scripts_links_or_secrets_that_shows_hostile_text_as_text(runs: Path) -> None:
    text = report(run_at(runs / "first")).decode()
    page = Page(text)
    assert {*page.tags}.isdisjoint({"script", "img", "link", "a", "iframe", "object", "base", "form"})
    assert [name for name, _ in page.attributes if name in ("src", "href", "style") or name.startswith("on")] == []
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "default-src 'none'; style-src 'sha256-" in text
    assert OBEYED.findall(text) == []
    assert SECRET not in text
    assert "reward/mean" in page.text
    assert page.tags.count("polyline") > 5
    assert "What is " in page.text


def test_a_report_of_a_hostile_session_has_its_markup_as_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<b>run", steps=1, groups=1)
    (folder / "metrics.jsonl").write_text('{"step": 2, "reward/<i>": 1}\n{"step": 3, "reward/<i>": 2}\n')
    page = Page(report(run_at(folder)).decode())
    assert {"b", "i", "script"}.isdisjoint(page.tags)
    assert "<script>window.attacked = 1</script>" in page.text
    assert "more characters" in page.text
    assert HOSTILE.encode("unicode_escape").decode() in page.text


def test_the_report_is_written_where_it_is_asked_for(tmp_path: Path, runs: Path, command: Any) -> None:
    code, text = command("report", runs / "first", "--out", tmp_path / "r.html")
    assert (code, (tmp_path / "r.html").read_bytes()[:15]) == (0, b"<!DOCTYPE html>"), text
    code, text = command("report", runs / "first", "--out", tmp_path / "nowhere" / "r.html")
    assert code == 2
    assert "can't write there" in text


@pytest.mark.slow
def test_all_pages_link_to_each_other_alone_and_every_session_is_whole(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "LISTED", 10)
    run = write_run(tmp_path / "<b>run", steps=6, groups=1)
    for _ in range(2):  # the second is in place of the first
        code, text = command("report", run, "--all")
        assert code == 0, text
    folder = run / "report"
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    reached, waiting = set[str](), ["index.html"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        page = Page(found[name].read_text())
        assert {*page.tags}.isdisjoint({"script", "img", "link", "iframe", "object", "base", "form", "b"})
        links = [str(value) for key, value in page.attributes if key in ("src", "href", "style")]
        waiting += [os.path.normpath(os.path.join(os.path.dirname(name), link)) for link in links]
    assert reached == {*found}
    with Store(run / "sessions.db", read_only=True) as store:
        pages = [found[name].read_text() for name in sorted(found) if name.startswith("sessions/")]
        sessions = [store.load(row.id) for row in store.find({}, sort="task").rows]
    assert len(pages) == len(sessions) == 26
    for text, session in zip(pages, sessions, strict=True):
        page = Page(text)
        assert session.id in page.text
        assert SECRET not in text
        assert page.tags.count("h4") == len(session.nodes)
        assert all(visible_text(node.message.text[:100_000], keep="\n\t") in page.text for node in session.nodes)


def test_pages_are_not_written_over_what_is_no_report(tmp_path: Path, runs: Path, command: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    code, text = command("report", runs / "first", "--all", "--out", tmp_path / "mine")
    assert (code, (tmp_path / "mine" / "thesis.txt").read_text()) == (2, "all of it")
    assert "files that are no report" in text


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_browser_shows_the_report_in_its_own_style_and_runs_nothing(
    runs: Path, tmp_path: Path, page: Any
) -> None:
    (tmp_path / "report.html").write_bytes(report(run_at(runs / "first")))
    await page.goto((tmp_path / "report.html").as_uri())
    assert await page.evaluate("getComputedStyle(document.querySelector('polyline')).fill") == "none"
    assert await page.evaluate("window.attacked") is None
    assert await page.get_by_role("img").count() > 5
    await page.get_by_role("group").first.click()
    assert await page.locator("details[open] pre").first.is_visible()

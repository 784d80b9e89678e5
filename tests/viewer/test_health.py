"""Alarms: each is raised by what it is about, by nothing else, and leads to sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.store.search import search
from agentrl.viewer.filters import filters_of
from agentrl.viewer.health import alarms
from agentrl.viewer.runs import Runs
from tests.viewer.recorded import write_run

STEPS = 30
SETTINGS = {"mismatch_bound": 0.01, "weights.mode": "in_place"}
HEALTHY = {
    "reward/mean": 0.5,
    "reward/correct": 0.4,
    "reward/form": 0.1,
    "mismatch/abs_mean": 1e-6,
    "policy/entropy": 1.0,
    "group/count": 8.0,
    "group/zero_variance": 2.0,
    "status/infra_error": 0.0,
    "status/agent_error": 0.01,
    "status/truncated": 0.05,
    "count/tool_calls": 40.0,
    "count/tool_errors": 4.0,
    "count/tool_silent": 3.0,
    "stream/discarded_stale": 0.0,
    "time/idle_engine": 0.2,
    "time/idle_trainer": 0.5,
    "sessions/trained_tokens": 100.0,
    "sessions/count": 8.0,
    "signal/sampled": 100.0,
    "signal/trained": 80.0,
    "signal/flat": 20.0,
    "tokens/after_switch": 10.0,
}
ILL = {
    "Engine and trainer disagree": {"mismatch/abs_mean": 0.02},
    "Entropy has collapsed": {"policy/entropy": 0.01},
    "Groups without a signal": {"group/zero_variance": 7.9},
    "Sampled tokens are not trained": {"signal/trained": 20.0, "signal/flat": 80.0},
    "Infrastructure failures": {"status/infra_error": 0.3},
    "The agent fails often": {"status/agent_error": 0.5},
    "Sessions are cut off": {"status/truncated": 0.7},
    "Most tool calls fail": {"count/tool_errors": 30.0},
    "Tools answer with nothing": {"count/tool_silent": 30.0},
    "Tools are no longer called": {"count/tool_calls": 1.0, "count/tool_errors": 0.0, "count/tool_silent": 0.0},
    "Groups grow too old": {"stream/discarded_stale": 4.0},
    "Caches are of older weights": {"tokens/after_switch": 300.0},
    "Engines are idle": {"time/idle_engine": 0.9},
    "The trainer is idle": {"time/idle_trainer": 0.99},
    "One component earns the reward": {"reward/form": 0.9, "reward/mean": 1.3},
    "Length grows without reward": {"sessions/trained_tokens": 400.0},
}


def rows(later: dict[str, float]) -> list[dict[str, Any]]:
    """A run that was healthy for its first ten steps."""
    return [{"step": step, **HEALTHY, **(later if step > 10 else {})} for step in range(1, STEPS + 1)]


def test_a_healthy_run_and_one_without_steps_raise_nothing() -> None:
    assert alarms(rows({}), SETTINGS) == []
    assert alarms([], {}) == []
    assert alarms([{"step": 1}], {}) == []


@pytest.mark.parametrize("title", ILL)
def test_each_alarm_is_raised_by_what_it_is_about_and_alone(title: str) -> None:
    (found,) = alarms(rows(ILL[title]), SETTINGS)
    assert found["title"] == title
    assert found["metric"] in rows({})[0]
    assert found["reason"]
    assert found["advice"]


@pytest.mark.slow
def test_the_sessions_of_an_alarm_are_found_by_its_filters(tmp_path: Path) -> None:
    run = Runs(write_run(tmp_path / "run", hostile=False)).get("run")
    for ill in ILL.values():
        for alarm in alarms(rows(ill), SETTINGS):
            assert alarm["sessions"], alarm["title"]
            order = {"sort": alarm["sessions"].get("sort"), "descending": alarm["sessions"].get("descending") == "1"}
            assert run.store().find(filters_of(run, alarm["sessions"].items()), **order).rows is not None
    (failing,) = alarms(rows(ILL["Infrastructure failures"]), {})
    found = run.store().find(filters_of(run, failing["sessions"].items())).rows
    assert found
    assert {row.blame for row in found} == {"infra"}


@pytest.mark.slow
def test_a_search_that_stops_goes_on_where_it_stopped(tmp_path: Path) -> None:
    run = Runs(write_run(tmp_path / "run", hostile=False)).get("run")
    whole = search(run.database, "division", {"phase": "train"}, sort="step", seconds=60, limit=10_000)
    assert whole.next is None
    found, after, searched = [], None, 0
    while True:
        part = search(run.database, "division", {"phase": "train"}, sort="step", seconds=0, after=after, batch=7)
        assert part.searched <= 7
        found, after, searched = found + part.rows, part.next, searched + part.searched
        if after is None:
            break
    assert found == whole.rows
    assert searched == whole.searched == 241

"""What went on when."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.driver.warmstart import note_times
from agentrl.types import Message, Session, Status, Task
from agentrl.viewer.runs import run_at
from agentrl.viewer.timeline import BINS, MOST_ENGINES, MOST_SESSIONS, busy_lanes, timeline
from tests.viewer.recorded import spoken, write_run
from tests.viewer.test_app import client

TIMES = st.lists(st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(0, 30))), max_size=30)


def run_with(folder: Path, times: list[tuple[float, float | None]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("steps: 1\n")
    (folder / "sessions.db").unlink(missing_ok=True)
    with Store(folder / "sessions.db") as store, store.batch():
        for number, (start, length) in enumerate(times):
            status = Status.OPEN if length is None else Status.COMPLETED
            ended = None if length is None else 1e9 + start + length
            store.save(Session(str(number), Task(id="t"), status=status, started=1e9 + start, ended=ended))
    return folder


def hold_counts(counts: list[int], spans: list[tuple[float, float]], low: float, high: float) -> None:
    """Each count is that of the spans that hold its moment, but for rounding."""
    for place, count in enumerate(counts):
        moment = low + place * (high - low) / (BINS - 1)
        around = [sum(start - wide <= moment <= end + wide for start, end in spans) for wide in (-1e-6, 1e-6)]
        assert around[0] <= count <= around[1]


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=TIMES, low=st.floats(0, 60), width=st.floats(1, 80))
def test_no_two_sessions_of_a_lane_overlap_and_counts_are_those_of_the_sessions(
    tmp_path: Path, times: list[tuple[float, float | None]], low: float, width: float
) -> None:
    found = timeline(run_at(run_with(tmp_path / "run", times)), low, low + width)
    lanes = defaultdict(list)
    for _, start, end, *_, lane in found["sessions"]:
        lanes[lane].append((start, end))
        assert start <= found["high"]
        assert end >= found["low"]
    assert sorted(lanes) == list(range(len(lanes)))
    for own in lanes.values():
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    every = timeline(run_at(tmp_path / "run"))["sessions"]
    assert len(every) == len(times)
    hold_counts(found["under_way"], [(start, end) for _, start, end, *_ in every], found["low"], found["high"])


def test_a_steps_phases_lie_one_behind_the_other_and_end_when_it_ended(tmp_path: Path) -> None:
    run = run_at(write_run(tmp_path / "run", steps=6, hostile=False))
    rows = run.metrics.rows()
    found = timeline(run)
    assert [step for step, _, _ in found["steps"]] == [1, 2, 3, 4, 5, 6]
    for row, (_, version, phases) in zip(rows, found["steps"], strict=True):
        assert [name for name, _, _ in phases] == ["rollout", "train", "publish"]
        assert version == row["version"]
        assert found["began"] + phases[0][1] == pytest.approx(row["time/ended"] - row["time/step"], abs=1e-3)
        assert all(math.isclose(end - start, row[f"time/{name}"], abs_tol=1e-3) for name, start, end in phases)
    third = found["steps"][2][2]
    near = timeline(run, third[0][1], third[-1][2])
    assert [step for step, _, _ in near["steps"]] == [3]
    assert [name for name, _ in near["lanes"]] == ["engine-0", "engine-1", "environments"]


def test_a_warm_start_is_there_from_its_beginning_and_ends_with_what_is_known_while_it_goes_on(tmp_path: Path) -> None:
    """Its steps have no rows among the metrics: the trainer seemed idle."""
    run = run_at(write_run(tmp_path / "run", steps=3, hostile=False))
    assert timeline(run)["warm_start"] is None
    began = timeline(run)["began"]
    note_times(run.path, began + 1.0, began + 3.5)
    assert timeline(run)["warm_start"] == pytest.approx([1.0, 3.5], abs=1e-3)
    note_times(run.path, began + 1.0, None)
    found = timeline(run)
    assert found["warm_start"] == pytest.approx([1.0, found["length"]], abs=1e-3)
    (run.path / "warm_start.json").write_text("torn")
    assert timeline(run)["warm_start"] is None


def test_of_more_sessions_than_can_be_drawn_only_the_count_is_given(tmp_path: Path) -> None:
    many = [(number / 10, 5.0) for number in range(MOST_SESSIONS + 1)]
    run = run_at(run_with(tmp_path / "run", many))
    assert timeline(run)["sessions"] is None
    assert max(timeline(run)["under_way"]) in (50, 51)
    assert timeline(run, 10, 12)["sessions"]


def test_a_run_without_times_has_an_empty_timeline(tmp_path: Path) -> None:
    assert timeline(run_at(run_with(tmp_path / "run", [])))["began"] is None


@pytest.mark.parametrize("given", ["x", "nan", "-1"])
async def test_a_time_that_is_none_is_named(tmp_path: Path, given: str) -> None:
    run_with(tmp_path / "run", [(0.0, 1.0)])
    async with client(tmp_path) as viewer:
        answer = await viewer.get("/api/timeline", params={"run": "run", "from": given})
    assert answer.status_code == 400
    assert f"from={given!r}" in answer.json()["error"]


WORK = st.tuples(st.sampled_from(["engine-0", "engine-10", "environments"]), st.floats(0, 100), st.floats(0, 30))


def working(folder: Path, work: list[tuple[str, float, float]]) -> Path:
    """A run of a session whose messages took so long, on an engine each or in the environment."""
    session = Session("s", Task(id="t"), status=Status.COMPLETED, started=0.0, ended=200.0)
    root = tree.add(session, None, Message(role="user", content="go"), [1])
    for where, began, took in work:
        if where == "environments":
            node = tree.add(session, root.id, Message(role="user", content="and"), [2])
            node.timings = {"began": began, "env": took}
        else:
            node = spoken(session, root, Message(role="assistant", content="so"), 0)
            node.engines, node.timings = (where,), {"began": began, "generation": took}
    (folder / "sessions.db").unlink(missing_ok=True)
    with Store(folder / "sessions.db") as store:
        store.save(session)
    return folder / "sessions.db"


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=st.lists(WORK, max_size=20), low=st.floats(0, 60), width=st.floats(1, 80))
def test_lanes_count_the_requests_of_each_engine_and_the_calls_of_environments(
    tmp_path: Path, work: list[tuple[str, float, float]], low: float, width: float
) -> None:
    found = busy_lanes(working(tmp_path, work), low, low + width)
    assert found is not None
    assert [name for name, _ in found] == sorted({where for where, *_ in work}), "in their order, environments last"
    for name, counts in found:
        assert len(counts) == BINS
        hold_counts(counts, [(began, began + took) for where, began, took in work if where == name], low, low + width)


def test_of_many_engines_the_last_ones_share_a_lane_and_too_many_nodes_are_not_read(tmp_path: Path) -> None:
    file = working(tmp_path, [(f"engine-{number}", 1.0, 1.0) for number in range(MOST_ENGINES + 5)])
    found = busy_lanes(file, 0.0, 2.0)
    assert found is not None
    assert [name for name, _ in found] == [*(f"engine-{n}" for n in range(MOST_ENGINES - 1)), "other engines"]
    assert max(found[-1][1]) == 6
    assert busy_lanes(file, 0.0, 2.0, most_nodes=10) is None

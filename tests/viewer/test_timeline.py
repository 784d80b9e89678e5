"""What went on when."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.sessions.store import Store
from agentrl.types import Session, Status, Task
from agentrl.viewer.runs import run_at
from agentrl.viewer.timeline import BINS, MOST_SESSIONS, timeline
from tests.viewer.recorded import write_run
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
    distance = (found["high"] - found["low"]) / (BINS - 1)
    for place, count in enumerate(found["under_way"]):
        moment = found["low"] + place * distance
        around = [sum(s - wide <= moment <= e + wide for _, s, e, *_ in every) for wide in (-1e-6, 1e-6)]
        assert around[0] <= count <= around[1]


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

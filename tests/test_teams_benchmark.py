"""`benchmarks.teams` runs to its end; strategies that it reads from weights are those that the policies sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.envs.registry import make
from agentrl.train.record.verify import verify
from benchmarks import central_critic
from benchmarks.teams import SMALL, checkpoint, measured, of_policies, strategy_of


@pytest.mark.slow
def test_the_teams_benchmark_measures_what_it_says_in_its_small_form(tmp_path: Path) -> None:
    lines = [text for _, text in measured("speaker_listener", 0, tmp_path, small=True)]
    assert [line.split()[1] for line in lines[1:]] == ["moved", "of", "frozen:", "frozen:"]
    run = tmp_path / "speaker_listener-0"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    for who in ("speaker", "listener"):
        rows = (tmp_path / f"speaker_listener-0-{who}" / "metrics.jsonl").read_text().splitlines()
        assert not any("other/loss" in json.loads(row) for row in rows), "one policy learns"
    world = make("speaker_listener")
    chances = strategy_of(world, of_policies("speaker_listener", checkpoint(run, -1)))
    world.begin(0)
    assert 0 <= sum(chances("speaker", world.seen("speaker")).values()) <= 1 + 1e-4


@pytest.mark.slow
def test_two_policies_learn_with_critics_of_joint_paths(tmp_path: Path) -> None:
    rows = central_critic.play(tmp_path / "run", "joint", 0, SMALL)
    for row in rows:
        assert {f"{policy}critic/{name}" for policy in ("", "other/") for name in ("loss", "value_mean")} <= row.keys()
    report = verify(tmp_path / "run")
    assert report.passed, report

"""Stages that keep the best of n sessions: their file is read by the next one, resumed, hashed and verified."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.errors import AgentRLError, ConfigError, NoSignal
from agentrl.overrides import spread, validate
from agentrl.train.chain.planning import plan_chain
from agentrl.train.driver import api
from agentrl.train.evaluation import rejection
from agentrl.train.evaluation.rescore.rescoring import RescoreConfig
from agentrl.train.evaluation.suite.results import read_results
from agentrl.train.record import chain
from agentrl.train.record.chain import StageKind, StageState
from agentrl.train.record.verify import verify_chain
from agentrl.viewer.attach import attach_all
from agentrl.viewer.runs import Runs
from tests.train.chain.test_chain import LETTERS, SMALL, rows
from tests.train.test_resume import exit_code_of

BEST: dict[str, Any] = {"reject": {"n": 1}, "env": "calculator", "policy": "expert", "eval.tasks": 6}
IMITATE = {"data": "stage:best", "steps": 1}


def plan(tmp_path: Path, stages: dict[str, Any], **common: Any) -> Any:
    return plan_chain({"stages": stages, "run_dir": str(tmp_path / "chain"), **spread(common)})


@pytest.mark.slow
def test_the_best_sessions_are_what_the_next_stage_imitates_and_a_kill_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    stages = {"best": BEST, "imitate": IMITATE}
    result = api.train(stages=stages, run_dir=str(whole), **SMALL)
    assert result.checkpoint.parent.parent == whole / "imitate"
    record = chain.read(whole)
    assert [each.kind for each in record.stages] == [StageKind.REJECT, StageKind.TRAIN]
    read = record.stages[1].start.read  # type: ignore[union-attr]
    assert read == {"best/best.jsonl": record.stages[0].end.weights}  # type: ignore[union-attr]
    assert record.stages[0].end.after == 1  # type: ignore[union-attr]
    assert verify_chain(whole).passed

    with monkeypatch.context() as patch:
        patch.setattr(rejection, "write_atomically", lambda *rest: os._exit(9))
        assert exit_code_of(lambda: api.train(stages=stages, run_dir=str(killed), **SMALL)) == 9
    assert not (killed / "best" / "best.jsonl").exists()
    assert chain.read(killed).current.state is StageState.BEGUN
    with pytest.raises(ConfigError, match=r"stage best: .* has sessions of other settings"):
        api.train(resume=str(killed), **{"stages.best.seed": 5})
    api.train(resume=str(killed), **{"stages.best.seed": SMALL.get("seed", 0)})
    assert (killed / "best" / "best.jsonl").read_bytes() == (whole / "best" / "best.jsonl").read_bytes()
    assert same_bits_of_stage(whole, killed, "imitate")

    with pytest.raises(ConfigError, match="stage best: reject: the stage is done"):
        api.train(resume=str(killed), **{"stages.best.reject.max_per_task": 2})
    rewards = validate({"rewards": {"short": {"name": "length", "most": 9}}}, RescoreConfig)
    with pytest.raises(ConfigError, match=rf"is a chain of runs: name one of its stages \({whole}/best"):
        api.run_rescore(whole, rewards)
    for folder in (whole, whole / "imitate"):
        with pytest.raises(ConfigError, match="agentrl diff compares runs and chains"):
            read_results(folder)
    assert read_results(whole / "best").policy == "expert", "a stage that plays is an evaluation"
    shown = Runs(tmp_path).chains()
    assert [stage["state"] for each in shown for stage in each["stages"]] == ["done"] * 4
    assert Runs(tmp_path).get("killed/best").kind() == "evaluation"
    drawn = Console(file=StringIO())
    attach_all(killed, drawn, 0.01)
    (killed / "best" / "best.jsonl").write_text("{}\n")
    told = [*verify_chain(killed).lines()]
    assert any("best.jsonl is missing, or is other than the stage ended with" in line for line in told), told
    assert any("best/best.jsonl is missing, or other than when it read it" in line for line in told), told


def same_bits_of_stage(one: Path, other: Path, name: str) -> bool:
    ends = [chain.read(path).stage(name).end for path in (one, other)]  # type: ignore[union-attr]
    return ends[0] is not None and ends[0].weights == ends[1].weights  # type: ignore[union-attr]


@pytest.mark.slow
def test_where_nothing_is_kept_the_chain_goes_on_with_a_lower_threshold(tmp_path: Path) -> None:
    noop = {**BEST, "policy": "noop", "reject": {"n": 1}}
    with pytest.raises(NoSignal, match="stage best: no session of 2 is kept"):
        api.train(stages={"best": {**noop, "eval.tasks": 2}}, run_dir=str(tmp_path / "chain"))
    with pytest.raises(NoSignal, match=r"min_reward is 0\.5"):
        api.train(resume=str(tmp_path / "chain"), **{"stages.best.reject.min_reward": 0.5})


def test_it_takes_the_model_that_was_trained_before_it_and_passes_that_on(tmp_path: Path) -> None:
    sft = {"data": rows(tmp_path / "sums.jsonl"), "steps": 3}
    own = {key: value for key, value in BEST.items() if key != "policy"}
    planned = plan(tmp_path, {"first": sft, "best": own, "second": IMITATE}, **{"algo.lr": 1e-3, "steps": 7, "seed": 2})
    assert [stage.kind for stage in planned.stages] == ["train", "reject", "train"]
    first = str(tmp_path / "chain" / "first" / "checkpoints" / "step-000003")
    assert [stage.config.model.name for stage in planned.stages[1:]] == [first] * 2
    assert planned.stages[2].config.data.name == str(tmp_path / "chain" / "best" / "best.jsonl")
    assert planned.stages[1].config.seed == 2
    assert any("plays 1 sessions of each of 6 tasks of calculator by" in line for line in planned.lines())
    planned = plan(tmp_path, {"best": own, "second": IMITATE}, model="tiny")
    assert [stage.config.model.name for stage in planned.stages] == ["tiny", "tiny"]
    assert not (tmp_path / "chain").exists()


@pytest.mark.slow
def test_what_the_model_of_an_earlier_stage_plays_is_imitated_by_the_next(tmp_path: Path) -> None:
    stages = {
        "first": {"data": rows(tmp_path / "sums.jsonl"), "algo": "sft", "steps": 6},
        "best": {"reject": {"n": 4, "min_reward": 0.01}, "env": f"{LETTERS}:Letters", "eval.tasks": 4},
        "second": {"data": "stage:best", "steps": 1},
    }
    turns = {"rollout.turn_tokens": 64, "eval.turn_tokens": 64}
    api.train(stages=stages, run_dir=str(tmp_path / "chain"), **{**SMALL, **turns, "algo.lr": 3e-3})
    first, best, _ = chain.read(tmp_path / "chain").stages
    assert first.end is not None
    assert best.start is not None
    assert best.start.model == f"first/{first.end.model}", "it plays with what was trained before it"
    kept = [json.loads(line) for line in (tmp_path / "chain" / "best" / "best.jsonl").read_text().splitlines()]
    assert kept
    assert {row["messages"][-1]["role"] for row in kept} == {"assistant"}
    assert all(row["reward"] >= 0.01 for row in kept)
    assert verify_chain(tmp_path / "chain").passed


@pytest.mark.parametrize(
    ("stage", "own", "told"),
    [
        ("best", {"reject": 8}, "stage best: reject=8: it is a mapping with n"),
        ("best", {"reject": {"m": 8}}, "stage best: unknown setting 'reject.m'"),
        ("best", {"reject": {"out": "x.jsonl"}}, r"stage best: reject.out: .* data=stage:NAME"),
        ("best", {"n": 8}, "stage best: n is reject.n in a stage"),
        ("best", {"steps": 8}, "stage best: steps is for training"),
        ("best", {"env": "calculater"}, "stage best: unknown environment"),
        ("best", {"policy": "expret"}, "stage best: unknown policy 'expret'"),
        ("best", {"eval.n": 3}, "stage best: eval.n is n= here"),
        ("imitate", {"algo": "grpo"}, "stage imitate: data=.*best.jsonl: algo=grpo learns from rewards"),
        ("imitate", {"model": "stage:best"}, "stage imitate: model=stage:best: that stage's result is no model"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_played(
    tmp_path: Path, stage: str, own: dict[str, Any], told: str
) -> None:
    stages: dict[str, Any] = {"best": BEST, "imitate": IMITATE}
    with pytest.raises(AgentRLError, match=told):
        plan(tmp_path, {**stages, stage: {**stages[stage], **own}})

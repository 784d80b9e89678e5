"""Chains: stages are the runs that they would be alone, killed and resumed bit for bit, and verified as one."""

from __future__ import annotations

import json
import re
import shutil
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from agentrl.config import yaml_settings
from agentrl.errors import AgentRLError, ConfigError
from agentrl.train.chain.planning import kept_settings, plan_chain
from agentrl.train.driver import api
from agentrl.train.record import chain, manifest
from agentrl.train.record.verify import verify_chain
from agentrl.viewer.attach import attach_all
from agentrl.viewer.runs import Runs, run_at, stage_pairs
from tests.train.test_resume import exit_code_of

LETTERS = Path(__file__).with_name("letters.py")
SMALL: dict[str, Any] = {
    "checkpoint_every": 1,
    "eval.tasks": 2,
    "rollout.groups_per_step": 2,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 8,
    "weights.probe_tokens": 0,
    "warm_start.steps": 0,
    "algo.lr": 1e-3,
}


def rows(file: Path) -> str:
    names = ["one", "two", "three", "four", "five"]
    lines = [{"question": f"What is {a} and {b}?", "answer": f"It is {a} {b}."} for a in names for b in names]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def three(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Imitation, reinforcement, and offline reinforcement on what was sampled, from the model that sampled it."""
    return {
        "imitate": {"data": rows(tmp_path / "sums.jsonl"), "algo": "sft", "steps": 2},
        "reinforce": {"env": f"{LETTERS}:Letters", "algo": "grpo", "steps": 2},
        "offline": {"data": "stage:reinforce", "model": "stage:imitate", "algo": "grpo", "steps": 1},
    }


def metrics(run: Path) -> list[dict[str, float]]:
    timed = ("time/", "throughput/", "resumed/", "stream/")
    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines]


def same_bits(one: Path, other: Path) -> bool:
    """Whether the same stages trained the same weights with the same metrics."""
    ends = {path: {stage.name: stage.end for stage in chain.read(path).stages} for path in (one, other)}
    assert ends[one].keys() == ends[other].keys()
    for name, end in ends[one].items():
        assert end is not None
        assert metrics(one / name) == metrics(other / name)
        assert end.model == ends[other][name].model  # type: ignore[union-attr]
        first, second = (load_file(path / name / end.model / "model.safetensors") for path in (one, other))
        assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    return True


@pytest.mark.slow
def test_a_chain_is_its_runs_and_the_same_after_kills_anywhere(tmp_path: Path) -> None:
    stages, whole = three(tmp_path), tmp_path / "whole"
    result = api.train(stages=stages, run_dir=str(whole), **SMALL)
    assert list(result.stages) == list(stages)  # type: ignore[attr-defined]
    record = chain.read(whole)
    assert record.done
    assert [each.start.stage for each in record.stages if each.start] == [None, "imitate", "imitate"]
    folders = [whole / name for name in ("model", "imitate/model", "reinforce/model", "offline/model")][1:]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    assert all(torch.equal(tensor, weights[2][name]) for name, tensor in weights[1].items())

    killed, plan = tmp_path / "killed", tmp_path / "plan.yaml"
    plan.write_text("faults: [{action: kill, point: step.published, nth: 2}]")
    settings = {**SMALL, "stages": stages, "run_dir": str(killed), "stages.reinforce.faults": str(plan)}
    assert exit_code_of(lambda: api.train(**settings)) == -signal.SIGKILL
    assert chain.read(killed).current.name == "reinforce"
    assert chain.resume_command(killed / "reinforce", "").endswith(f"resume={killed}")
    with pytest.raises(ConfigError, match=r"stage imitate: steps=2 -> 5: the stage is done"):
        api.train(resume=str(killed), steps=5)
    resumed = api.train(resume=str(killed), **{"stages.reinforce.faults": None})
    assert resumed.checkpoint.parent.parent == killed / "offline"
    assert same_bits(whole, killed)

    # as a kill leaves it that comes after a stage's end and before the manifest says so
    record = chain.read(killed)
    shutil.rmtree(killed / "offline")
    record.changed("reinforce", state="begun", end=None).changed(
        "offline", state="waiting", start=None, end=None
    ).write()
    with pytest.raises(ConfigError, match=r"stage offline: unknown setting 'stepz'"):
        api.train(resume=str(killed), **{"stages.offline.stepz": 5})
    api.train(resume=str(killed))
    assert same_bits(whole, killed)
    with pytest.raises(ConfigError, match="stage imitate of the chain"):
        api.train(resume=str(killed / "imitate"), steps=5)

    shown = {run["name"]: run for run in Runs(tmp_path).chains()}
    assert [stage["run"] for stage in shown["killed"]["stages"]] == [f"killed/{name}" for name in stages]
    assert {stage["state"] for stage in shown["killed"]["stages"]} == {"done"}
    assert run_at(killed).path == killed / "offline"
    assert [pair[0] for pair in stage_pairs(whole, killed)] == [f"stage {name}" for name in stages]
    drawn = Console(file=StringIO())
    attach_all(killed, drawn, 0.01)
    assert "stage offline: 3 of 3 stages are done" in drawn.file.getvalue()  # type: ignore[attr-defined]

    assert verify_chain(killed).passed
    other = {
        "imitate/checkpoints/step-000002": "imitate: .* has other weights",
        "offline/model": "offline.*model/ has other weights",
    }
    for name, told in other.items():
        broken = tmp_path / "broken"
        shutil.copytree(killed, broken)
        (broken / name / "model.safetensors").unlink()  # a hard link elsewhere
        shutil.copy(killed / "imitate" / "model" / "model.safetensors", broken / name)
        (broken / name / "manifest.json").unlink()
        manifest.write(broken / name)
        report = verify_chain(broken)
        assert not report.passed
        assert any(re.search(told, line) for line in report.lines()), [*report.lines()]
        shutil.rmtree(broken)


def plan(tmp_path: Path, *layers: dict[str, Any]) -> Any:
    return plan_chain(*layers, {"run_dir": str(tmp_path / "chain")})


def test_what_is_wrong_with_any_stage_is_told_with_its_name_before_anything_is_written(tmp_path: Path) -> None:
    stages = three(tmp_path)
    for name, wrong, told in [
        ("offline", {"algo": "gropo"}, "stage offline: .*gropo"),
        ("offline", {"data": "stage:imitat"}, "stage offline: data=stage:imitat: unknown stage 'imitat'; did you mean"),
        ("offline", {"data": "stage:offline"}, "stage offline: data=stage:offline: that stage does not come before"),
        ("offline", {"data": str(tmp_path / "none.jsonl"), "algo": "sft"}, "stage offline: .*no such file"),
        ("reinforce", {"env": "castel"}, "stage reinforce: unknown environment 'castel'"),
        ("reinforce", {"run_dir": "there"}, "stage reinforce: run_dir is no stage's setting"),
        ("imitate", {"model": "no-such-model"}, "stage imitate: unknown model"),
    ]:
        with pytest.raises(AgentRLError, match=told):
            api.train(stages={**stages, name: {**stages[name], **wrong}}, run_dir=str(tmp_path / "chain"), **SMALL)
    both = {"imitate": {**stages["imitate"], "stepz": 1}, "offline": {**stages["offline"], "algo": "x"}}
    with pytest.raises(AgentRLError, match=r"stage imitate: (.*\n)*stage offline: "):
        api.train(stages={**stages, **both}, run_dir=str(tmp_path / "chain"), **SMALL)
    with pytest.raises(ConfigError, match="a mapping from names to settings"):
        api.train(stages=["imitate"])
    with pytest.raises(ConfigError, match="a mapping from names to settings"):
        api.train(stages=None)
    assert not (tmp_path / "chain").exists()


def test_words_win_over_the_file_for_a_stage_and_for_all_and_leave_references(tmp_path: Path) -> None:
    file = {"stages": three(tmp_path), "model": "tiny", "seed": 1, **api.spread(SMALL)}
    file["stages"]["imitate"]["seed"] = 2
    planned = plan(tmp_path, file)
    assert [stage.config.seed for stage in planned.stages] == [2, 1, 1]
    assert [stage.config.steps for stage in planned.stages] == [2, 2, 1]
    planned = plan(tmp_path, file, {"seed": 3, "steps": 7}, api.spread({"stages.offline.steps": 4}))
    assert [stage.config.seed for stage in planned.stages] == [3, 3, 3]
    assert [stage.config.steps for stage in planned.stages] == [7, 7, 4]
    assert planned.stages[1].config.model.name.endswith("imitate/checkpoints/step-000007")
    assert planned.stages[2].config.data.name.endswith("chain/reinforce")
    assert [stage.config.algo.name for stage in planned.stages] == ["sft", "grpo", "grpo"]
    with pytest.raises(AgentRLError, match="unknown stage 'ofline'; did you mean 'offline'"):
        plan(tmp_path, file, api.spread({"stages.ofline.steps": 4}))


def test_a_common_environment_or_file_gives_way_to_a_stages_own(tmp_path: Path) -> None:
    data = rows(tmp_path / "sums.jsonl")
    stages = {
        "imitate": {"data": data, "algo": "sft"},
        "play": None,
        "other": {"env": "castle"},
    }
    planned = plan(
        tmp_path, {"env": {"name": "calculator", "min_steps": 2}, "stages": stages, "warm_start": {"steps": 0}}
    )
    assert [stage.config.env.name for stage in planned.stages] == ["data", "calculator", "castle"]
    assert [stage.config.env.kwargs for stage in planned.stages] == [{}, {"min_steps": 2}, {}]
    assert not any((tmp_path / "chain").glob("*"))


def test_a_reward_models_result_is_no_policy_that_the_next_stage_begins_with(tmp_path: Path) -> None:
    data = {"data": rows(tmp_path / "sums.jsonl"), "steps": 3}
    judged = {"name": "reward_model", "model": "stage:judge"}
    stages = {"imitate": data, "judge": {**data, "algo": "reward_model"}}
    play = {"env": "calculator", "rewards": {"judged": judged}}
    planned = plan(tmp_path, {"stages": {**stages, "play": play}, "warm_start": {"steps": 0}})
    start = planned.stages[2].model
    assert start is not None
    assert start.stage == "imitate"
    assert planned.stages[2].config.rewards["judged"].model.endswith("judge/checkpoints/step-000003")
    assert any("rewards.judged.model of judge" in line for line in planned.lines())
    with pytest.raises(ConfigError, match="stage play: model=stage:judge: that stage's result is no policy"):
        plan(tmp_path, {"stages": {**stages, "play": {**play, "model": "stage:judge"}}})


def test_no_secret_is_kept_and_another_one_is_no_other_setting(tmp_path: Path) -> None:
    """A command's options are secrets by the type of their setting, not by its name."""
    stages = {"play": {"env": "calculator", "agent": "env agent --token sk-planted-one"}}
    common = {"rewards": {"good": {"name": "llm_judge", "url": "http://a:sk-planted-two@127.0.0.1/v1", "model": "m"}}}
    planned = plan(tmp_path, {"stages": stages, **common})
    text = yaml_settings.write(kept_settings(planned)) + json.dumps(planned.begun_record().stages[0].settings)
    assert "sk-planted" not in text
    assert "env agent --token" in text
    again = plan(tmp_path, {"stages": {"play": {**stages["play"], "agent": "env agent --token other"}}, **common})
    assert again.stages[0].hash == planned.stages[0].hash

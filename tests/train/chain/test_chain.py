"""Chains: stages are the runs that they would be alone, killed and resumed bit for bit, and verified as one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file

from agentrl.errors import AgentRLError, ConfigError
from agentrl.train.chain.planning import plan_chain
from agentrl.train.driver import api
from agentrl.train.record import chain

SMALL: dict[str, Any] = {
    "checkpoint_every": 1,
    "eval.tasks": 2,
    "rollout.groups_per_step": 2,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 8,
    "rollout.max_turns": 2,
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
        "reinforce": {"env": "calculator", "algo": "grpo", "steps": 2, "allow_no_signal": True},
        "offline": {"data": "stage:reinforce", "model": "stage:imitate", "algo": "grpo", "steps": 1, "allow_no_signal": True},
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


def test_a_chain_is_its_runs_and_the_same_after_kills_anywhere(tmp_path: Path) -> None:
    stages, whole = three(tmp_path), tmp_path / "whole"
    result = api.train(stages=stages, run_dir=str(whole), **SMALL)
    assert list(result.stages) == list(stages)  # type: ignore[attr-defined]
    record = chain.read(whole)
    assert record.done
    assert [each.start.stage for each in record.stages if each.start] == [None, "imitate", "imitate"]

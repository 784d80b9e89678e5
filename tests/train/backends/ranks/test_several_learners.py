"""Several policies whose trainers have processes of their own, of different kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.train.record.verify import verify
from tests.train.test_several_learners import BOTH, alone, same, weights

STEADY = {"schedule": "constant", "warmup_steps": 0}
"""Learning rates that don't depend on how many steps there are to be."""


@pytest.mark.slow
def test_policies_have_trainers_of_other_kinds_and_each_goes_on_and_learns_as_alone(tmp_path: Path) -> None:
    """Two ranks of FSDP beside Megatron, in a run that ended after a step and goes on with another one."""
    kinds = {"trainer": "fsdp", "trainer.ranks": 2, "policies.other.trainer": "megatron", "algo.minibatches": 1}
    short = {"steps": 1, "checkpoint_every": 1, "keep_checkpoints": 9}
    steady = {f"{prefix}algo.{name}": value for prefix in ("", "policies.other.") for name, value in STEADY.items()}
    agentrl.train(run_dir=str(tmp_path), **BOTH | kinds | short | steady)
    agentrl.train(resume=str(tmp_path), steps=2)
    report = verify(tmp_path)
    assert report.passed, report
    for policy in ("main", "other"):
        assert not same(weights(tmp_path, policy, 1), weights(tmp_path, policy, 2)), f"{policy} learns"
        assert same(alone(tmp_path, policy, tmp_path / policy), weights(tmp_path, policy, 2))

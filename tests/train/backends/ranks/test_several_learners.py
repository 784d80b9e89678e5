"""Several policies whose trainers and engines have processes of their own, of different kinds, and die."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl import faults
from agentrl.errors import AgentRLError
from agentrl.train.record import ledger
from agentrl.train.record.verify import verify
from tests.train.test_several_learners import BOTH, alone, same, weights

KILLS = """
faults:
  - {action: kill, target: engine, point: weights.publish, nth: 3}
  - {action: kill, target: trainer, point: weights.publish, nth: 4}
  - {action: kill, target: engine, point: step.published, nth: 1}
  - {action: kill, target: trainer, point: groups.taken, nth: 2}
  - {action: kill, target: engine, point: checkpoint.rename, nth: 2}
  - {action: kill, target: trainer, point: checkpoint.renamed, nth: 2}
"""
"""Deaths before, within and after publications and commits; the driver's are `benchmarks.crash_points.TEAM_KILLS`.

Each life publishes both policies once before its steps. A trainer dies in steps 1, 2 and 3."""


@pytest.mark.slow
def test_each_policy_learns_as_alone_whichever_of_its_processes_die(tmp_path: Path) -> None:
    """FSDP beside Megatron. An engine's death is survived; a trainer's ends the run, which is resumed."""
    plan, run = tmp_path / "plan.yaml", tmp_path / "run"
    plan.write_text(KILLS)
    kinds = {"trainer": "fsdp", "policies.other.trainer": "megatron", "algo.minibatches": 1}
    apart = {"engine.process": "own", "policies.other.engine.process": "own", "faults": str(plan)}
    short = {"steps": 3, "checkpoint_every": 1, "keep_checkpoints": 9, "algo.warmup_steps": 0}
    with pytest.raises(AgentRLError):
        agentrl.train(run_dir=str(run), **BOTH | kinds | apart | short)
    with pytest.raises(AgentRLError):
        agentrl.train(resume=str(run))
    agentrl.train(resume=str(run))
    assert [row["fault"] for row in faults.list_fired(run)] == [0, 1, 2, 3, 4, 5]
    assert list(ledger.faults(run)) == []
    report = verify(run)
    assert report.passed, report
    for policy in ("main", "other"):
        assert not same(weights(run, policy, 0), weights(run, policy, 3)), f"{policy} learns"
        assert same(alone(run, policy, tmp_path / policy), weights(run, policy, 3))

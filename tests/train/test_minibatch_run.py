"""A run with several updates a step is interrupted between two of them, resumed and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.errors import TrainerError
from agentrl.train.record.verify import verify
from agentrl.train.record.verify.step_checks import SEALED
from agentrl.train.trainers.optimizer import Optimizer
from tests.train.test_rerun import WORLD, train
from tests.train.test_resume import rows

pytestmark = pytest.mark.slow
SETTINGS: dict[str, Any] = {
    **{"rollout.groups_per_step": 4, "rollout.group_size": 3, "rollout.turn_tokens": 16, "eval.tasks": 1},
    **{"algo.lr": 1e-3, "algo.minibatches": 3, "algo.epochs": 2, "steps": 2, "checkpoint_every": 1},
}


@pytest.mark.timeout(600)
def test_a_step_that_is_interrupted_between_its_updates_is_repeated_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    world, whole, cut = f"{tmp_path / 'world.py'}:Dense", tmp_path / "whole", tmp_path / "cut"
    train(env=world, **SETTINGS, run_dir=str(whole))
    assert [row["minibatches"] for row in rows(whole)] == [3, 3]
    report = verify(whole, weights=True)
    assert report.passed, list(report.lines())
    assert {why for check in report.checks for why in check.unknown} == {SEALED}

    step, count = Optimizer.step, iter(range(1000))

    def interrupted(self: Optimizer) -> float:
        if next(count) == 6 + 4:  # in the second epoch of the second step
            raise TrainerError("the trainer died")
        return step(self)

    monkeypatch.setattr(Optimizer, "step", interrupted)
    with pytest.raises(TrainerError, match="died"):
        train(env=world, **SETTINGS, run_dir=str(cut), trainer={"max_restarts": 0})
    assert len(rows(cut)) == 1
    train(resume=str(cut))
    assert rows(cut) == rows(whole)
    one, two = (load_file(run / "checkpoints" / "step-000002" / "model.safetensors") for run in (whole, cut))
    assert all(torch.equal(one[name], two[name]) for name in one)

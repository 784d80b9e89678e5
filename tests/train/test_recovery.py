"""A trainer whose processes die is started anew within the run, which ends as if nothing had happened."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl import faults
from agentrl.errors import ConfigError, TrainerError
from agentrl.train.display.console import Display
from agentrl.train.driver.recovery import Recovery
from benchmarks.crash_points import difference, rows
from tests.conftest import need

WORLD = """
import agentrl
from agentrl.envs.builtin.calculator import Calculator


class Dense(Calculator):
    @agentrl.reward
    def letters(self, session) -> float:
        return sum(map(ord, session.answer)) % 11 / 10
"""
"""The calculator, with rewards for whatever is written, so that a model that can do nothing learns in every step."""
SETTINGS: dict[str, Any] = {
    **{"warm_start.steps": 2, "warm_start.demos": 4, "warm_start.batch": 2, "eval.tasks": 1, "algo.lr": 1e-3},
    **{"rollout.groups_per_step": 1, "rollout.group_size": 3, "rollout.turn_tokens": 16, "rollout.session_tokens": 400},
    **{"steps": 4, "checkpoint_every": 2, "trainer": "megatron", "trainer.ranks": 2, "engine.process": "own"},
}
PLAN = """
faults:
  - {action: kill, target: trainer, point: trainer.call, nth: 3}
  - {action: kill, target: trainer, point: step.published, nth: 3}
  - {action: kill, target: engine, point: metrics.write, nth: 3}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_trainer_and_engine_die_ends_like_one_whose_parts_live(tmp_path: Path) -> None:
    """A rank dies in the warm start, where there is no checkpoint, and after the third step, and then the engine does.

    The newest checkpoint is that of the second step then, and the engine has the weights of the third.
    """
    need(importlib.util.find_spec("megatron") is not None, "megatron-core is not installed")
    plan, world = tmp_path / "plan.yaml", tmp_path / "world.py"
    plan.write_text(PLAN)
    world.write_text(WORLD)
    runs = [tmp_path / "straight", tmp_path / "restarted"]
    for run, planned in zip(runs, (None, str(plan)), strict=True):
        shown = StringIO()
        display = Display(Console(file=shown, width=500))
        agentrl.train(f"{world}:Dense", display=display, **SETTINGS, run_dir=str(run), faults=planned)
    assert [row["fault"] for row in faults.fired(runs[1])] == [0, 1, 2]
    assert "continues from the beginning" in shown.getvalue()
    assert "continues from step-000002; steps up to 3 are trained again" in shown.getvalue()
    assert difference(*runs) == ""
    assert any(row.get("grad_norm") for row in rows(runs[0])), "nothing was learned, so nothing was compared"


@pytest.mark.slow
def test_a_trainer_that_dies_more_often_than_it_may_ends_the_run_and_says_so(tmp_path: Path) -> None:
    need(importlib.util.find_spec("megatron") is not None, "megatron-core is not installed")
    plan = tmp_path / "plan.yaml"
    plan.write_text("faults: [{action: kill, target: trainer, point: trainer.call, nth: 2}]")
    settings = {**SETTINGS, "trainer.ranks": 1, "engine.process": "shared", "trainer.max_restarts": 0}
    with pytest.raises(TrainerError) as caught:
        agentrl.train("calculator", **settings, run_dir=str(tmp_path / "run"), faults=str(plan))
    assert any("trainer.max_restarts=0 allows no more" in note for note in caught.value.__notes__)


def starts(*outcomes: Exception | str) -> Callable[[], str]:
    """Something to start that ends in these ways, one after another."""
    left = iter(outcomes)

    def start() -> str:
        if isinstance(outcome := next(left), Exception):
            raise outcome
        return outcome

    return start


def test_a_trainer_that_dies_while_it_starts_is_started_as_often_as_it_may_die_later() -> None:
    died, said = TrainerError("start: rank 0 of 1 failed"), list[str]()
    recovery = Recovery(starts(), 2)
    assert recovery.first(starts(died, died, "a trainer"), said.append) == "a trainer"
    assert len(said) == recovery.restarts == 2
    with pytest.raises(TrainerError):
        recovery.first(starts(died, "a trainer"), said.append)


@pytest.mark.slow
def test_a_trainer_that_can_not_be_built_is_not_tried_again() -> None:
    with pytest.raises(ConfigError):
        Recovery(starts(), 2).first(starts(ConfigError("trainer.ranks=3"), "a trainer"), print)

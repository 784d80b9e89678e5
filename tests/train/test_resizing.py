"""A file in the run's folder gives the trainer other processes while the run goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import agentrl
from agentrl.config import RunConfig
from agentrl.train.display.console import Display
from agentrl.train.driver.resizing import FILE, requested
from agentrl.train.record import ledger

CONFIG = RunConfig.model_validate({"env": "calculator", "trainer": {"name": "torch", "threads": 2}})


def test_only_how_its_processes_divide_the_work_can_be_changed(tmp_path: Path) -> None:
    said: list[str] = []
    for text, told in (
        ("dtype: bfloat16", "dtype can't be changed during a run; allowed: ranks, "),
        ("threads: 0", "trainer.yaml is left out of account: .*threads"),
        ("threads", "does not hold|mapping"),
    ):
        (tmp_path / FILE).write_text(text)
        assert requested(tmp_path, CONFIG, said.append) is None
        assert not (tmp_path / FILE).exists()
        assert re.search(told, said.pop())


@pytest.mark.slow
def test_settings_that_are_the_same_change_nothing_and_others_are_those_of_the_trainer(tmp_path: Path) -> None:
    assert requested(tmp_path, CONFIG, print) is None
    (tmp_path / FILE).write_text("threads: 2")
    assert requested(tmp_path, CONFIG, print) is None
    (tmp_path / FILE).write_text("threads: 1")
    found = requested(tmp_path, CONFIG, print)
    assert found is not None
    assert found.trainer == CONFIG.trainer.model_copy(update={"threads": 1})


class Asks(Display):
    """Asks for another trainer when the first step is done."""

    run: Path
    asked = False

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        super().step(metrics, curve)
        if "sessions/count" in metrics and not self.asked:  # not a step of the warm start
            (self.run / FILE).write_text("threads: 1")
            self.asked = True


@pytest.mark.slow
def test_a_run_goes_on_with_the_other_trainer_from_the_step_that_it_had_done(tmp_path: Path) -> None:
    run, shown = tmp_path / "run", StringIO()
    display = Asks(Console(file=shown, width=500))
    display.run = run
    settings: dict[str, Any] = {
        **{"steps": 3, "checkpoint_every": 100, "warm_start.steps": 2, "warm_start.demos": 8, "eval.tasks": 1},
        **{"rollout.groups_per_step": 1, "rollout.group_size": 4, "trainer.threads": 2},
    }
    agentrl.train("calculator", **settings, run_dir=str(run), display=display)
    assert "the trainer continues from step-000001; steps up to 1 are trained again" in shown.getvalue()
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["threads"] == 1
    assert list(ledger.faults(run)) == []

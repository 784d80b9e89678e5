"""A run with forked sessions that is killed goes on bit for bit, and can be run again by its record."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import agentrl
from agentrl.rollout.episodes.groups import TRAIN
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.record import ledger
from tests.train.test_resume import kill_amid, rows

WORLD = """
import random

import agentrl


class Letters(agentrl.Env):
    max_turns = 3

    def tasks(self, split="train"):
        return [agentrl.Task(id=str(number)) for number in range(12)]

    def reset(self, task, *, seed=None):
        self.taken = 0
        return f"Say {task.id}."

    def step(self, message):
        self.taken += 1
        more = agentrl.Message(role="user", content=f"More {self.taken}.")
        earned = sum(map(ord, message.text)) % 11 / 10
        return agentrl.StepResult([more], reward=earned, terminated=self.taken == 3)

    def demonstrate(self, messages):
        return random.Random(repr(messages)).choice("abcdefgh")

    def state(self):
        return {"taken": self.taken}

    def restore(self, task, state):
        self.taken = state["taken"]
"""
SETTINGS: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 2, "rollout.turn_tokens": 16, "rollout.session_tokens": 300},
    **{"rollout.branch": "every", "rollout.branch.continuations": 2, "warm_start.steps": 20, "warm_start.demos": 16},
    **{
        "warm_start.batch": 8,
        "algo.lr": 1e-3,
        "algo.kl_coef": 0.0,
        "eval.tasks": 1,
        "steps": 3,
        "checkpoint_every": 1,
        "seed": 5,
    },
}


def sessions(run: Path) -> int:
    with Store(run / "sessions.db", read_only=True) as store:
        return len(store.ids())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_with_forks_goes_on_to_the_same_trees_and_weights_and_is_run_again(tmp_path: Path) -> None:
    world, straight, killed = tmp_path / "world.py", tmp_path / "straight", tmp_path / "killed"
    world.write_text(WORLD)
    settings = {"env": f"{world}:Letters", **SETTINGS}
    agentrl.train(**settings, run_dir=str(straight))
    before: list[int] = []

    def far_enough() -> bool:
        """Among the second step's sessions."""
        lines = killed / "metrics.jsonl"
        if lines.exists() and b"\n" in lines.read_bytes():
            before.append(sessions(killed))
        return bool(before) and before[-1] > before[0]

    kill_amid(lambda: agentrl.train(**settings, run_dir=str(killed)), far_enough)
    assert not (killed / "checkpoints" / "step-000003").exists(), "killed too late to prove anything"
    agentrl.train(resume=str(killed))

    assert rows(killed) == rows(straight)
    assert any(row.get("grad_norm") for row in rows(straight)), "nothing was learned, so nothing was compared"
    assert ledger.read(killed) == ledger.read(straight)
    one, two = (load_file(run / "checkpoints" / "step-000003" / "model.safetensors") for run in (straight, killed))
    assert all(torch.equal(one[name], two[name]) for name in one)
    with Store(straight / "sessions.db") as a, Store(killed / "sessions.db") as b:
        assert a.ids() == b.ids()
        pairs = [(a.load(i), b.load(i)) for i in a.ids()]
    assert all(one.nodes == two.nodes and one.branches == two.branches for one, two in pairs)
    assert any(len(one.branches) > 2 for one, _ in pairs if one.phase == TRAIN), "nothing was forked"

    shown = StringIO()
    agentrl.train(rerun=str(killed), display=Display(Console(file=shown, width=500)))
    assert "step-000003" in shown.getvalue()

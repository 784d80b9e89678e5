"""A run whose agent sees: from an environment's pictures to a checkpoint, cut, resumed, and computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.attachments import images
from agentrl.envs.episode import EXPERT, play
from agentrl.envs.registry import make
from agentrl.errors import TrainerError
from agentrl.sessions.store.store import Store
from agentrl.train.record.verify import verify
from agentrl.train.trainers.optimizer import Optimizer
from tests.train.test_rerun import train
from tests.train.test_resume import rows

WORLD = """
import agentrl
from PIL import Image

task_words = ["ab", "c"]


class Seen(agentrl.Env):
    max_turns = 2

    def tasks(self, split="train"):
        return [agentrl.Task(id=str(number)) for number in range(12)]

    def reset(self, task, *, seed=None):
        self.colour = int(task.id) * 20
        return [{"role": "user", "content": [agentrl.image(self.draw(32)), "Which colour?"]}]

    def step(self, message):
        return agentrl.StepResult(messages=[agentrl.Message(role="user", content=[self.draw(20), "And this?"])])

    def draw(self, side):
        return Image.new("RGB", (side, side), (self.colour, 0, len(str(side)) * 90))

    def demonstrate(self, messages):
        return task_words[len(messages) % 2]

    @agentrl.reward
    def letters(self, session) -> float:
        return sum(map(ord, session.answer)) % 11 / 10
"""
"""Rewards whatever is written. It is imitated for a few steps, so that turns end."""
SETTINGS: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 3, "rollout.turn_tokens": 12, "eval.tasks": 1},
    **{"warm_start.steps": 5, "warm_start.demos": 12, "warm_start.batch": 4, "warm_start.lr": 4e-3},
    **{"algo.lr": 1e-3, "algo.minibatches": 1, "steps": 2, "checkpoint_every": 1, "trainer.vision_lr": 3e-3},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_sees_is_resumed_to_the_last_bit_and_computed_again_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    world, whole, cut = f"{tmp_path / 'world.py'}:Seen", tmp_path / "whole", tmp_path / "cut"
    train(env=world, **SETTINGS, run_dir=str(whole))
    report = verify(whole, weights=True)
    assert report.passed, list(report.lines())
    shown = 0
    with Store(whole / "sessions.db", read_only=True) as store:
        for session in store.sessions(phase="train"):
            seen = [node for node in session.nodes if node.message.images]
            assert all(images.NAME in node.attachments for node in seen)
            shown = max(shown, len(seen))
    assert shown > 1, "no session came to its second picture"
    begun, ended = (load_file(whole / name / "model.safetensors") for name in ("model", "checkpoints/step-000002"))
    changed = {name.split(".")[1] for name, tensor in ended.items() if not torch.equal(begun[name], tensor)}
    assert changed == {"vision_model", "connector", "text_model"}

    step, count = Optimizer.step, iter(range(1000))

    def interrupted(self: Optimizer) -> float:
        if next(count) == 5 + 1:  # in the second step after imitation
            raise TrainerError("the trainer died")
        return step(self)

    monkeypatch.setattr(Optimizer, "step", interrupted)
    with pytest.raises(TrainerError, match="died"):
        train(env=world, **SETTINGS, **{"trainer.max_restarts": 0}, run_dir=str(cut))
    assert len(rows(cut)) == 1
    train(resume=str(cut))
    assert rows(cut) == rows(whole)
    again = load_file(cut / "checkpoints" / "step-000002" / "model.safetensors")
    assert all(torch.equal(ended[name], again[name]) for name in ended)

    own = SETTINGS | {"steps": 1, "warm_start.steps": 0, "rollout.staleness": 1}  # an engine in a process of its own
    train(env=world, **own, model=str(whole / "checkpoints" / "step-000002"), run_dir=str(tmp_path / "from a folder"))
    assert len(rows(tmp_path / "from a folder")) == 1, "a folder of a model that sees was refused by the proof at start"


@pytest.mark.parametrize("name", ["shapes", "grid_camera"])
async def test_the_demonstrator_of_a_world_that_is_seen_errs_and_the_expert_does_not(name: str) -> None:
    env = make(name)
    tasks = [task for task, _ in zip(env.tasks("eval"), range(8), strict=False)]
    assert [(await play(make(name), task, policy=EXPERT, seed=0)).score for task in tasks] == [1.0] * 8
    session = await play(make(name), tasks[0], policy=EXPERT, seed=0)
    assert any(node.message.images for node in session.nodes)

"""A whole run on the Megatron trainer: engine, environment, checkpoints; how well it learns is measured, not tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.train.record.verify import verify
from agentrl.types import Message, Session, Task

SMALL = {
    **{"warm_start.steps": 10, "warm_start.demos": 16, "warm_start.batch": 4},
    **{"rollout.groups_per_step": 2, "rollout.group_size": 4, "rollout.turn_tokens": 16, "eval.tasks": 2},
}
WORDS = ("one", "two", "three", "four")


class Say(agentrl.Env):
    """A turn of a few tokens; every answer earns something, however little was learned, and no two the same."""

    splits = ("train", "eval")

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"id": f"{split}-{word}", "word": word} for word in WORDS]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._word = str(task["word"])
        return f"Say {self._word}."

    def step(self, message: Message) -> agentrl.StepResult:
        return agentrl.StepResult(terminated=True)

    def expert(self, messages: Sequence[Message]) -> str:
        return self._word

    @agentrl.reward
    def length(self, session: Session) -> float:
        return 1.0 / (1 + len(session.answer))


@pytest.mark.slow
def test_a_run_imitates_reinforces_publishes_and_resumes_under_another_layout(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    first = agentrl.train(
        Say,
        trainer={"name": "megatron", "tensor_parallel": 2},
        algo="ppo",  # which trains on every session that is scored: no step is left out; and has a critic to resume
        steps=1,
        seed=0,
        checkpoint_every=1,
        run_dir=str(tmp_path / "run"),
        **SMALL,
    )
    assert len(first.metrics) == 1
    assert first.metrics[0]["version"] == 11
    second = agentrl.train(
        resume=str(tmp_path / "run"),
        steps=2,
        trainer={"name": "megatron", "tensor_parallel": 1, "pipeline_parallel": 1, "ranks": 2},
    )
    assert [row["version"] for row in second.metrics] == [11, 12]
    assert all(row["tokens/trained"] for row in second.metrics)
    assert all(row["mismatch/abs_mean"] < 1e-4 for row in second.metrics), "the engine is not the trainer"
    report = verify(second.path)
    assert report.passed, list(report.lines())
    one, two = second.metrics
    assert one["critic/return_mean"] > 0
    assert one["critic/value_mean"] == pytest.approx(one["critic/return_mean"], abs=1e-6), "a critic begins at the mean"
    assert two["critic/value_mean"] != pytest.approx(two["critic/return_mean"], abs=1e-6), "it has begun anew"

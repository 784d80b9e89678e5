"""Checkpoints: another layout goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.advantages.ppo import PpoConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import judged, random_forests, run
from tests.train.backends.megatron.resuming import TESTED, covering, try_pairs
from tests.train.backends.megatron.world import World

LEARN: dict[str, Any] = {"lr": 1e-2, "kl_coef": 0.1, "schedule": "cosine", "weight_decay": 0.1}
ALGO, PPO = AlgoConfig(**LEARN), PpoConfig(**LEARN, value_lr=3e-2, value_epochs=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "algo", "one", "other"),
    [
        ("smollm2", PPO, {"tensor_parallel": 2, "sequence_parallel": True}, {"pipeline_parallel": 2}),
        ("smollm2", ALGO, {"ranks": 2, "async_save": True}, {"tensor_parallel": 2, "sequence_parallel": True}),
        ("qwen3_moe", ALGO, {"expert_parallel": 2}, {"pipeline_parallel": 2}),
        ("olmo2", ALGO, {"tensor_parallel": 2}, {"ranks": 2}),
    ],
    ids=["with its critic", "written beside training", "experts", "norms over all heads"],
)
def test_what_was_saved_under_one_layout_resumes_under_another(
    case: str, algo: AlgoConfig, one: dict[str, Any], other: dict[str, Any], world: World, tmp_path: Path
) -> None:
    folder = zoo.write(case, tmp_path / case)
    batches = [judged(seed) if algo is PPO else random_forests(seed, old=False) for seed in range(3)]
    path = tmp_path / "deep" / "state"
    path.parent.mkdir()
    straight = run(world, "save", folder, batches, str(path), algo=algo, **one)
    if one.get("async_save"):
        path = tmp_path / "deep-moved" / "state"
    assert [p.name for p in path.parent.iterdir()] == ["state"]
    resumed = run(world, "resume", folder, batches, str(path), algo=algo, **other)
    assert resumed["version"] == 1
    for ours, theirs in zip(resumed["rows"], straight["rows"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4, abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert ours["lr"] == theirs["lr"]
        assert ours["policy/kl_reference"] == pytest.approx(theirs["policy/kl_reference"], rel=1e-3, abs=1e-6)
        if algo is PPO:
            assert ours["critic/loss"] == pytest.approx(theirs["critic/loss"], rel=1e-4)
    critics = [*resumed["critic"], *straight["critic"]]
    assert len(critics) == (4 if algo is PPO else 0), "every rank has it"
    assert all(float((row - critics[0]).norm() / critics[0].norm()) < 1e-4 for row in critics)


@pytest.mark.slow
def test_weights_and_moments_are_the_same_under_every_layout_that_continues(world: World, tmp_path: Path) -> None:
    """A later stage's weights were others after save and load, even under the same layout: its tied head's bucket
    has padding, which Megatron's form of the optimizer's state forgot. All pairs: see `resuming`."""
    assert try_pairs(world, covering(TESTED), tmp_path) == []


@pytest.mark.slow
def test_every_pair_of_choices_of_layout_optimizer_and_model_is_tried() -> None:
    pairs = covering(TESTED)
    for choice in ("distributed", "tied", "width"):
        values = {getattr(one, choice) for one, _ in pairs}
        for side in (0, 1):
            met = {(pair[side].layout, getattr(pair[side], choice)) for pair in pairs}
            assert met == {(layout, value) for layout in TESTED for value in values}
    layouts = {frozenset((one.layout, other.layout)) for one, other in pairs}
    assert layouts == {frozenset((one, other)) for one in TESTED for other in TESTED}

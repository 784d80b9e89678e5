"""Ranks of every trainer compute narrowed turns as one process does: sets, penalties and biases are where rows are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import CLIP, run
from tests.train.backends.megatron.conftest import tiny, world  # noqa: F401
from tests.train.backends.megatron.world import World
from tests.train.test_supports import Kept, narrowed
from tests.train.trees import as_group, leaf_credit, random_session


def forests() -> list[Forest]:
    rng = random.Random(5)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=4, branching=3) for i in range(3)]
    for session in sessions:
        narrowed(rng, session, Kept())
    credit, _ = leaf_credit(rng, sessions)
    found = pack([as_group([session], session.id) for session in sessions], credit, 80)
    assert len(found) > 1
    return found


ALGO = CLIP.model_copy(update={"kl_coef": 0.2, "entropy_coef": 0.05, "lr": 1e-3})
"""Behind the first step the policy has left its reference, so that its divergence has a gradient."""


def same(found: Sequence[dict[str, float]], wanted: Sequence[dict[str, float]]) -> None:
    for ours, theirs, rel in zip(found, wanted, (1e-4, 1e-3), strict=True):
        for name in ("loss", "grad_norm", "policy/entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=rel), name


def wanted(folder: Path) -> list[dict[str, float]]:
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"), ALGO)
    return [trainer.step(forests()) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_fsdp_ranks_compute_narrowed_turns_as_one_process_does(tmp_path: Path) -> None:
    folder = zoo.write("smollm2", tmp_path / "model")
    ours = FsdpTrainer(folder, FsdpConfig.model_validate({"ranks": 2, "timeout": 250}), ALGO)
    try:
        same([ours.step(forests()) for _ in range(2)], wanted(folder))
    finally:
        ours.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"tensor_parallel": 2}, {"context_parallel": 2}, {"pipeline_parallel": 2}], ids=str
)
def test_megatrons_ranks_compute_narrowed_turns_as_one_process_does(
    settings: dict[str, Any],
    world: World,  # noqa: F811
    tiny: Callable[[str], Path],  # noqa: F811
) -> None:
    answer = run(world, "steps", tiny("smollm2"), [forests()] * 2, algo=ALGO, **settings)
    same(answer["rows"], wanted(tiny("smollm2")))

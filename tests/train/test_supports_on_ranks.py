"""Ranks of every trainer compute narrowed turns as one process does: sets, penalties and biases are where rows are."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import AlgoConfig
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


def same(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name in ("loss", "grad_norm", "policy/entropy"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4), name


def wanted(folder: Path, algo: AlgoConfig = CLIP) -> dict[str, float]:
    return TorchTrainer(folder, TorchConfig(device="cpu"), algo).step(forests())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_fsdp_ranks_compute_narrowed_turns_as_one_process_does(tmp_path: Path) -> None:
    folder = zoo.write("smollm2", tmp_path / "model")
    ours = FsdpTrainer(folder, FsdpConfig.model_validate({"ranks": 2, "timeout": 250}), CLIP)
    try:
        same(ours.step(forests()), wanted(folder))
    finally:
        ours.close()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"tensor_parallel": 2}, {"context_parallel": 2}, {"ranks": 2}], ids=str)
def test_megatrons_ranks_compute_narrowed_turns_as_one_process_does(
    settings: dict[str, Any],
    world: World,  # noqa: F811
    tiny: Callable[[str], Path],  # noqa: F811
) -> None:
    answer = run(world, "steps", tiny("smollm2"), [forests()], **settings)
    same(answer["rows"][0], wanted(tiny("smollm2")))

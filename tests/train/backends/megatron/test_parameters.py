"""Freezing and learning rates by weights' names on Megatron's ranks, held to the torch trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import distances, random_forests, run
from tests.train.backends.megatron.world import WorkerFailed, World

ALGO = AlgoConfig(lr=1e-3, epochs=2, weight_decay=0.1)
RATES: dict[str, Any] = {"lr_factors": {"*.mlp.*": 3.0, "*norm*": 0.25}, "layer_decay": 0.5}
LAYOUTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "TP2": (("*.layers.1.mlp.*",), {"tensor_parallel": 2}),
    "DP2": (("*self_attn*",), {"ranks": 2}),
    "PP2, a stage frozen": (
        ("*embed_tokens*", "*.layers.0.*", "*.layers.1.*"),
        {"pipeline_parallel": 2, "recompute": "full"},
    ),
    "PP2, a tied head slower": ((), {"pipeline_parallel": 2}),
    "Muon, TP2": (("*.layers.1.mlp.*",), {"tensor_parallel": 2, "optimizer": "muon"}),
    "Muon, PP2 DP2": ((), {"pipeline_parallel": 2, "ranks": 4, "optimizer": "muon"}),
}


def by_name(tensors: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.write("smollm2", tmp_path_factory.mktemp("zoo") / "smollm2")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_frozen_weights_stay_and_the_others_learn_as_in_the_torch_trainer(
    layout: str, folder: Path, world: World
) -> None:
    freeze, settings = LAYOUTS[layout]
    trainer = TorchTrainer(
        folder,
        TorchConfig(device="cpu", freeze=freeze, optimizer=settings.get("optimizer", "adamw"), **RATES),
        ALGO,
        total_steps=2,
    )
    before = by_name(trainer.weights())
    batches = [random_forests(seed, old=False) for seed in range(2)]
    norms = [trainer.step(forests)["grad_norm"] for forests in batches]
    found = run(world, "steps", folder, batches, algo=ALGO, freeze=freeze, **RATES, **settings)
    assert [row["grad_norm"] for row in found["rows"]] == pytest.approx(norms, rel=2e-3)
    learned = by_name(trainer.weights())
    moved = {name for name, tensor in learned.items() if not torch.equal(tensor, before[name])}
    assert moved
    assert {name for name, tensor in found["weights"].items() if not torch.equal(tensor, before[name])} == moved
    ours = {name: found["weights"][name] - before[name] for name in moved}
    theirs = {name: learned[name] - before[name] for name in moved}
    assert max(distances(ours, theirs).values()) < (5e-2 if "Muon" in layout else 2e-2)


@pytest.mark.slow
def test_weights_that_are_one_parameter_are_not_trained_differently(folder: Path, world: World) -> None:
    with pytest.raises(WorkerFailed, match=r"q_proj\.weight: frozen, .*k_proj\.weight: 1 · lr"):
        run(world, "steps", folder, [], algo=ALGO, freeze=("*q_proj*",))
    with pytest.raises(WorkerFailed, match=r"trainer\.lr_factors: '\*visual\*' matches none of"):
        run(world, "steps", folder, [], algo=ALGO, lr_factors={"*visual*": 2.0})

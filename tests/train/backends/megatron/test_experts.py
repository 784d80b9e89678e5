"""Mixtures of experts in training: balance, drops, replay, and what is reported of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import AlgoConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import distances, random_forests, run
from tests.train.backends.megatron.world import World

ALGO = AlgoConfig(lr=1e-2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("zoo")
    return {name: zoo.write(name, base / name) for name in ("qwen3_moe", "deepseek_v3")}


def batches(count: int = 2) -> list[Any]:
    return [random_forests(seed, old=False) for seed in range(count)]


@pytest.mark.slow
def test_auxiliary_losses_reach_the_routers_and_are_reported(folders: dict[str, Path], world: World) -> None:
    plain = run(world, "steps", folders["qwen3_moe"], batches(1), algo=ALGO, optimizer="sgd")
    moe = {"aux_loss": 0.5, "z_loss": 0.1}
    for layout in ({}, {"expert_parallel": 2}):
        found = run(world, "steps", folders["qwen3_moe"], batches(1), algo=ALGO, optimizer="sgd", moe=moe, **layout)
        [row] = found["rows"]
        assert row["loss"] == pytest.approx(plain["rows"][0]["loss"], abs=1e-4)
        assert row["moe/aux_loss"] > 0.9  # 1 is perfect balance
        assert row["moe/z_loss"] > 0
        assert row["moe/dropped"] == pytest.approx(0, abs=1e-6)
        assert row["moe/load_max"] >= 1 >= row["moe/load_min"]
        moved = distances(found["weights"], plain["weights"])
        assert any(d > 1e-6 for name, d in moved.items() if name.endswith("mlp.gate.weight"))


@pytest.mark.slow
@pytest.mark.parametrize("drop", ["probs", "position"])
def test_an_expert_at_capacity_drops_what_is_too_much(drop: str, folders: dict[str, Path], world: World) -> None:
    moe = {"capacity": 0.5, "drop": drop}
    [row] = run(world, "steps", folders["qwen3_moe"], batches(1), algo=ALGO, moe=moe, expert_parallel=2)["rows"]
    assert 0.4 < row["moe/dropped"] < 0.9


@pytest.mark.slow
def test_a_selection_bias_moves_against_the_load(folders: dict[str, Path], world: World) -> None:
    still = run(world, "steps", folders["deepseek_v3"], batches(1), algo=ALGO)["weights"]
    moved = run(world, "steps", folders["deepseek_v3"], batches(1), algo=ALGO, moe={"bias_rate": 0.25})["weights"]
    names = [name for name in still if name.endswith("e_score_correction_bias")]
    assert names
    for name in names:
        steps = (moved[name] - still[name]).abs()
        assert bool(((steps - 0.25).abs().lt(1e-5) | (steps < 1e-5)).all())
        assert bool((steps > 0.2).any())


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"pipeline_parallel": 2, "recompute": "full"}])
def test_replayed_experts_are_those_of_the_first_pass(
    layout: dict[str, Any], folders: dict[str, Path], world: World
) -> None:
    """With a rate that turns the routers over between epochs, the second pass goes other ways unless it replays."""
    algo = AlgoConfig(lr=0.3, epochs=2, max_grad_norm=1e9)
    found = {
        mode: run(world, "steps", folders["qwen3_moe"], batches(1), algo=algo, moe={"routing_replay": mode}, **layout)[
            "rows"
        ][0]
        for mode in ("off", "forward")
    }
    loads = {mode: (row["moe/load_max"], row["moe/load_min"]) for mode, row in found.items()}
    once = AlgoConfig(lr=0.3, epochs=1, max_grad_norm=1e9)
    first = run(world, "steps", folders["qwen3_moe"], batches(1), algo=once, **layout)["rows"][0]
    assert loads["forward"] == pytest.approx((first["moe/load_max"], first["moe/load_min"]), rel=1e-6)
    assert loads["off"] != pytest.approx(loads["forward"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"tensor_parallel": 2}, {"context_parallel": 2}])
def test_experts_recorded_at_rollout_are_used(layout: dict[str, Any], folders: dict[str, Path], world: World) -> None:
    """Every recorded token goes to experts 0 and 1; where nothing was recorded the router decides."""
    forests = random_forests(0, old=False)
    for forest in forests:
        forest.routed_experts = torch.tensor([0, 1]).expand(len(forest), zoo.LAYERS - 1, 2).clone()
    [row] = run(
        world, "steps", folders["qwen3_moe"], [forests], algo=ALGO, moe={"routing_replay": "rollout"}, **layout
    )["rows"]
    assert row["moe/load_min"] == 0
    assert row["moe/load_max"] == pytest.approx(4.0)  # two of eight experts carry all
    for forest in forests:
        assert forest.routed_experts is not None
        forest.routed_experts.fill_(-1)
    [row] = run(
        world, "steps", folders["qwen3_moe"], [forests], algo=ALGO, moe={"routing_replay": "rollout"}, **layout
    )["rows"]
    assert row["moe/load_max"] < 3.9

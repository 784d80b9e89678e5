"""Steps under every kind of parallelism: the same weights by plain descent, the same course by Adam; and the head."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import AlgoConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import WORK, distances, random_forests, run
from tests.train.backends.megatron.world import World

SGD = AlgoConfig(lr=1e-2, max_grad_norm=1.0)
ADAM = AlgoConfig(lr=1e-3, epochs=2, schedule="linear", warmup_steps=1, weight_decay=0.1, max_grad_norm=1.0)
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "TP2 SP": ("smollm2", {"tensor_parallel": 2, "sequence_parallel": True}),
    "PP2": ("smollm2", {"pipeline_parallel": 2}),
    "CP2": ("smollm2", {"context_parallel": 2}),
    "DP2": ("smollm2", {"ranks": 2, "offload_optimizer": True}),
    "EP2": ("qwen3_moe", {"expert_parallel": 2}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("zoo")
    return {name: zoo.write(name, base / name) for name in {name for name, _ in LAYOUTS.values()}}


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], dict[str, Any]]:
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_steps_end_where_one_process_does(
    layout: str, folders: dict[str, Path], alone: dict[tuple[str, str], dict[str, Any]], world: World
) -> None:
    name, settings = LAYOUTS[layout]
    batches = [random_forests(seed, old=False) for seed in range(2)]
    for optimizer, algo in (("sgd", SGD), ("adam", ADAM)):
        if (name, optimizer) not in alone:
            alone[name, optimizer] = run(world, "steps", folders[name], batches, algo=algo, optimizer=optimizer)
        expected = alone[name, optimizer]
        found = run(world, "steps", folders[name], batches, algo=algo, optimizer=optimizer, **settings)
        for ours, theirs in zip(found["rows"], expected["rows"], strict=True):
            assert ours.keys() == theirs.keys()
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3), "which clipping hides in weights"
            assert ours["lr"] == theirs["lr"]
            assert ours["tokens/trained"] == theirs["tokens/trained"]
            assert ours["policy/entropy"] == pytest.approx(theirs["policy/entropy"], rel=1e-4)
        if optimizer == "sgd":
            assert max(distances(found["weights"], expected["weights"]).values()) < 1e-5


@pytest.mark.slow
def test_the_schedule_follows_steps_and_not_the_updates_of_their_epochs(folders: dict[str, Path], world: World) -> None:
    batches = [random_forests(1, old=False), [], random_forests(2, old=False)]
    found = run(world, "steps", folders["smollm2"], batches, algo=ADAM)
    assert [row["lr"] for row in found["rows"]] == pytest.approx([0.5e-3, 1e-3, 0.5e-3])


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_costs_a_step_on_all_ranks_and_nothing_else(
    folders: dict[str, Path], world: World
) -> None:
    good = random_forests(1, old=False)
    broken = [dataclasses.replace(f, advantage=torch.full_like(f.advantage, float("inf"))) for f in good]
    found = run(world, "steps", folders["smollm2"], [broken, good], algo=ADAM, ranks=2)
    assert [row["skipped_updates"] for row in found["rows"]] == [2.0, 0.0]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found["weights"].values())


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["DP2", "EP2"])
def test_a_reference_that_is_kept_says_what_one_that_is_switched_in_says(
    layout: str, folders: dict[str, Path], world: World
) -> None:
    """And the policy's weights come back to where gradients' buffers and the optimizer look for them."""
    name, settings = LAYOUTS[layout]
    batches = [random_forests(seed, old=False) for seed in range(2)]
    algo = ADAM.model_copy(update={"kl_coef": 0.1})
    switched, kept = (
        run(world, "steps", folders[name], batches, algo=algo, reference=way, **settings) for way in ("switch", "copy")
    )
    assert kept["rows"] == switched["rows"]
    assert [row["policy/kl_reference"] > 0 for row in kept["rows"]] == [True] * 2
    assert max(distances(kept["weights"], switched["weights"]).values()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("size", "chunk"), [(1, 10**6), (2, 10**6), (2, 60)])
def test_the_shared_head_equals_the_whole_one_forward_and_backward(size: int, chunk: int, world: World) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, width, vocabulary = 23, 12, 47
    states, weight = torch.randn(rows, width, generator=generator), torch.randn(48, width, generator=generator)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    temperature = 0.5 + torch.rand(rows, generator=generator)
    answers = world.run(f"{WORK}:head", states, weight, targets, temperature, vocabulary, chunk, size=size, tensor=size)

    whole, states = weight[:vocabulary].clone().requires_grad_(), states.clone().requires_grad_()
    logps = torch.log_softmax(states @ whole.t() / temperature[:, None], -1)
    logp, entropy = logps.gather(1, targets[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)
    (logp - 0.3 * entropy).sum().backward()
    assert states.grad is not None
    assert whole.grad is not None
    for ours in answers:
        for one, other in zip(ours[:3], (logp, entropy, states.grad), strict=True):
            assert torch.allclose(one, other.detach(), atol=2e-5)
    parts = torch.cat([ours[3] for ours in answers])
    assert torch.allclose(parts[:vocabulary], whole.grad, atol=2e-5)
    assert not parts[vocabulary:].any()

"""The critic under every kind of parallelism: the torch trainer's values, loss, gradients and updates."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, zeros_like

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.advantages.ppo import PpoConfig
from agentrl.train.algorithms.policy_losses.clipped import ClippedConfig
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack_credited
from agentrl.train.trainers.megatron.trainer import MegatronTrainer
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron.batches import distances, head_of, judged, published, run
from tests.train.backends.megatron.world import World
from tests.train.trees import as_group, linear_session, with_counterfactuals

PPO = PpoConfig(loss=ClippedConfig(clip_high=0.3), value_coef=0.5, value_clip=0.4, value_epochs=3, max_grad_norm=1e9)
LEARN = PpoConfig(lr=1e-2, value_lr=3e-2, value_epochs=3, kl_coef=0.1, schedule="cosine", weight_decay=0.1)
JOINT = LEARN.model_copy(update={"value_path": "joint"})
COMA = algorithm_settings({"name": "coma", "lr": 1e-2, "weight_decay": 0.1})
START = 0.3
"""Where the critic begins."""
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("smollm2", {}),
    "TP2": ("smollm2", {"tensor_parallel": 2, "sequence_parallel": False}),
    "TP2 SP": ("smollm2", {"tensor_parallel": 2, "sequence_parallel": True}),
    "PP2": ("smollm2", {"pipeline_parallel": 2}),
    "CP2": ("smollm2", {"context_parallel": 2}),
    "DP2": ("smollm2", {"ranks": 2}),
    "PP2 interleaved": ("qwen3", {"pipeline_parallel": 2, "virtual_pipeline": 2}),
    "TP2 SP CP2 recomputed": (
        "qwen3",
        {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2, "recompute": "full"},
    ),
    "TP2 PP2": ("smollm2", {"tensor_parallel": 2, "pipeline_parallel": 2}),
    "EP2": ("qwen3_moe", {"expert_parallel": 2}),
}


def a_row(width: int) -> Tensor:
    return torch.randn(1, width, generator=torch.Generator().manual_seed(width))


Told = tuple[float, list[Tensor], dict[str, Tensor], Tensor]


@pytest.fixture(scope="module")
def torch_says(tiny: Callable[[str], Path]) -> Callable[[str], Told]:
    """By a case's name, the torch trainer's loss, values and gradients, and what updates make of its critic's head."""
    known: dict[str, Told] = {}

    def ask(case: str) -> Told:
        if case not in known:
            trainer, forests = TorchTrainer(tiny(case), algo=PPO), judged(5)
            critic = trainer.critic
            assert critic is not None
            critic.head.weight.data.copy_(a_row(critic.head.weight.shape[1]))
            values = trainer.values(forests, START)
            batches = [trainer.prepare(forest) for forest in forests]
            loss = sum(map(trainer.backward, batches))
            named = trainer.model.named_parameters()
            gradients = published({n: zeros_like(p) if p.grad is None else p.grad for n, p in named})
            trainer.fit(critic, batches)
            known[case] = loss, values, gradients, head_of(critic)
        return known[case]

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_loss_and_every_gradient_are_those_of_the_torch_trainer(
    layout: str, world: World, tiny: Callable[[str], Path], torch_says: Callable[[str], Told]
) -> None:
    case, settings = LAYOUTS[layout]
    loss, values, gradients, critic = torch_says(case)
    row = a_row(len(critic) - 1)
    got = run(world, "criticism", tiny(case), judged(5), row, START, algo=PPO, distributed_optimizer=False, **settings)
    assert got["loss"] == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(got["values"], values, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4
    assert not {name: far for name, far in distances(got["gradients"], gradients).items() if not far < 1e-5}
    begun = torch.cat([row[0], torch.tensor([START])])
    assert float((critic - begun).norm()) > 0.1, "it has moved"
    assert all(torch.equal(own, got["critic"][0]) for own in got["critic"]), "every rank has the same"
    assert float((got["critic"][0] - critic).abs().max()) < 1e-3


def continued(seed: int) -> list[Forest]:
    """Forests with COMA's advantages, of sessions whose turns were drawn again."""
    rng = random.Random(seed)
    turns = [[[rng.randrange(8, 48) for _ in range(4)] for _ in range(2)] for _ in range(4)]
    sessions = [linear_session(f"{i}", [8, 9], each, reward=rng.random()) for i, each in enumerate(turns)]
    groups = [as_group([with_counterfactuals(session) for session in sessions])]
    return pack_credited(make_algorithm(COMA), groups, None, 40, seed)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        (LEARN, {}),
        (JOINT, {"ranks": 2}),
        (LEARN, {"tensor_parallel": 2, "sequence_parallel": True}),
        (COMA, {"ranks": 2}),
    ],
    ids=["one", "joint paths DP2", "TP2 SP", "continuations in place of a critic DP2"],
)
def test_steps_are_those_of_the_torch_trainer(
    algo: AlgoConfig, settings: dict[str, Any], world: World, tiny: Callable[[str], Path]
) -> None:
    """Adam, the critic at a rate of its own, the distributed optimizer; a critic that learns from other forests."""
    batches = [continued(seed) if algo is COMA else judged(seed) for seed in range(2)]
    trainer = TorchTrainer(tiny("smollm2"), algo=algo, total_steps=len(batches))
    rows = [trainer.step(forests, None, forests[:1] if algo is JOINT else ()) for forests in batches]
    got = run(world, "steps", tiny("smollm2"), batches, algo=algo, **settings)
    for ours, theirs in zip(got["rows"], rows, strict=True):
        for name in ("loss", "grad_norm", *(["critic/loss"] if trainer.critic else [])):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3 if name == "grad_norm" else 1e-4), name
    if trainer.critic is not None:
        critic = head_of(trainer.critic)
        assert all(float((row - critic).norm() / critic.norm()) < 1e-3 for row in got["critic"])


@pytest.mark.slow
def test_a_run_that_goes_on_in_the_same_layout_has_the_same_critic_bit_for_bit(
    world: World, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    batches = [judged(seed) for seed in range(3)]
    straight = run(world, "save", tiny("smollm2"), batches, str(tmp_path / "state"), algo=LEARN, ranks=2)
    resumed = run(world, "resume", tiny("smollm2"), batches, str(tmp_path / "state"), algo=LEARN, ranks=2)
    assert resumed["rows"] == straight["rows"]
    assert all(torch.equal(a, b) for a, b in zip(resumed["critic"], straight["critic"], strict=True))


def test_a_critic_with_a_trunk_of_its_own_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo.value_trunk=own: trainer=megatron .* trainer=torch"):
        MegatronTrainer(tmp_path, algo=PpoConfig(value_trunk="own"))

"""Batches of fewer forests than ranks: every loss and correction learns from them as one process does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.pairs import compared_nodes, pair_credit
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.trainer import FsdpTrainer
from agentrl.train.trainers.ranks.balance import assign
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import VersionSpan
from tests.suite.pairs import of, pairs
from tests.train.test_labels import kto
from tests.train.test_pairs import dpo, random_pairs
from tests.train.test_sequences import over_sequences
from tests.train.trees import as_group, leaf_credit, random_session

RANKS, STEPS = 2, 2
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "token": {"weight": "token", "weight_max": 1.5, "mask_token": (0.8, 1.2)},
    "turn": {
        "proximal": "recomputed",
        "weight": "turn",
        "weight_mean": True,
        "mask_turn": (0.9, 1.1),
        "mask_mean": True,
    },
    "session": {"weight": "session", "weight_max": 2.0, "mask_negative": 0.01},
}
LOSSES = ("clipped", "clip_cov", "gspo", "gmpo", "turns", "pairs", "labels", "critic")
SEED_OF_PAIRS = 2_556
"""The first batch of three trees with pairs that leaves a rank less than the other; packing those before took 18 s."""
INSTEAD = {(loss, name): "none" for loss in ("pairs", "labels") for name in CORRECTIONS} | {
    ("turns", "session"): "turn"
}
"""By loss, the corrections that it refuses, and what is tested in their place."""
COVERING = [
    case | {"correction": INSTEAD.get((case["loss"], case["correction"]), case["correction"])}
    for case in pairs(loss=LOSSES, correction=[*CORRECTIONS], epochs=(1, 2), kl_coef=(0.0, 0.1), trees=(1, 3))
]
MATRIX = [case for i, case in enumerate(COVERING) if case not in COVERING[:i]]


@pytest.fixture(scope="module")
def ranks(tiny_llama: Path) -> Iterator[FsdpTrainer]:
    trainer = FsdpTrainer(tiny_llama, FsdpConfig(ranks=RANKS, device="cpu", threads=1, timeout=300))
    yield trainer
    trainer.close()


def algorithm_of(loss: str, correction: str, **more: Any) -> Any:
    more |= {"lr": 1e-3, "correction": CORRECTIONS[correction]}
    if loss == "pairs":
        return dpo(**more)
    if loss == "labels":
        return kto(**more)
    if loss == "critic":
        return algorithm_settings({"name": "ppo", "value_epochs": 2, **more})
    if loss in ("gspo", "gmpo", "vespo", "turns"):
        return over_sequences(*(("gspo", "turn") if loss == "turns" else (loss, "session")), **more)
    return algorithm_settings({"name": "grpo", "loss": {"name": loss}, **more})


def idle(forests: list[Forest]) -> bool:
    return any(work.origin < 0 for works in assign(forests, RANKS, 32) for work in works)


def batch(algo: Any, trees: int, policy: TorchTrainer) -> list[Forest]:
    """Forests that leave a rank without any, or with less than the other; sampled near the policy."""
    first = SEED_OF_PAIRS if trees > 1 and make_algorithm(algo).needs.pairs else 0
    packed = (packed_of(algo, trees, random.Random(seed)) for seed in count(first))
    forests = next(each for each in packed if len(each) >= trees and idle(each))
    generator = torch.Generator().manual_seed(trees)
    for forest, logp in zip(forests, policy.logprobs(forests), strict=True):
        forest.behaviour_logp = logp + 0.3 * (torch.rand(len(forest), generator=generator) - 0.5)
        if policy.critic is not None:
            forest.returns, forest.value = forest.advantage.abs(), torch.zeros(len(forest))
    return forests


def packed_of(algo: Any, trees: int, rng: random.Random) -> list[Forest]:
    algorithm = make_algorithm(algo)
    sessions = [random_session(rng, f"s{i}", [8, 9, 10 + i], depth=4, branching=3) for i in range(trees)]
    sampled = [node for session in sessions for node in session.nodes if node.versions]
    for node in sampled:
        node.versions = [VersionSpan(0, node.versions[0].start, node.versions[0].end)]
    credit, _ = leaf_credit(rng, sessions)
    if algorithm.needs.pairs:
        if len(sampled) < 2 * trees:
            return []
        credit = pair_credit(sessions, random_pairs(rng, sessions, "session"), "session")
    groups = [as_group([session], session.id) for session in sessions]
    if algorithm.needs.labels:
        if not all(map(compared_nodes, sessions)):
            return []
        credit = algorithm.credit(groups)
    return pack(groups, credit, 80, merge=algo.merge, sequence=algorithm.sequence)


@pytest.mark.slow
@pytest.mark.parametrize(*of(MATRIX))
def test_two_steps_on_ranks_without_a_forest_are_those_of_one_process(
    loss: str, correction: str, epochs: int, kl_coef: float, trees: int, ranks: FsdpTrainer, tiny_llama: Path
) -> None:
    """The second step's tokens are of an older version."""
    algo = algorithm_of(loss, correction, epochs=epochs, kl_coef=kl_coef)
    theirs = TorchTrainer(tiny_llama, TorchConfig(device="cpu", threads=1), algo)
    ranks.build(tiny_llama, ranks.config, ranks.make_algorithm(algo), 1)
    given = batch(algo, trees, theirs)
    before = {name: tensor.clone() for name, tensor in theirs.weights()}
    for _ in range(STEPS):
        found, wanted = ranks.step(given), theirs.step(given)
        assert found == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in wanted.items()}
    after = dict(theirs.weights())
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())
    for name, tensor in ranks.weights():
        assert torch.allclose(tensor, after[name], atol=1e-5), name

"""Every registered algorithm and policy loss takes a step on forked sessions; a few raise the reward of the tiny model.

`python -m benchmarks.algorithms` has the rise of all of them.
"""

from __future__ import annotations

import random
from math import isfinite
from pathlib import Path

import pytest
import torch

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import ALGORITHMS, Needs, algorithm_settings
from agentrl.train.algorithms.credit import NodeKey
from agentrl.train.algorithms.policy_losses import LOSSES
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import GREEDY, Group, Session
from benchmarks.algorithms import MARGIN, Matrix
from tests.train.forked import random_segment, session_of
from tests.train.trees import as_group, linear_session, with_counterfactuals

NAMES = [*sorted(ALGORITHMS.known()), *(f"loss={name}" for name in sorted(LOSSES.known()))]


def settings_of(name: str) -> AlgoConfig:
    algo, loss = ("grpo", name.removeprefix("loss=")) if name.startswith("loss=") else (name, None)
    compares = LOSSES.find(loss).compares if loss else None
    algo = {"pairs": "dpo", "labels": "kto"}.get(compares or "", algo)
    return algorithm_settings({"name": algo, "lr": 1e-2} | ({"loss": {"name": loss}} if loss else {}))


def sessions(needs: Needs) -> list[Group]:
    if not needs.engine:
        made = [linear_session(f"d{i}", [8, 9], [[12 + i, 13]], demonstrated=True) for i in range(4)]
        for place, session in enumerate(made):
            session.reward = float(place % 2)
        return [as_group(made)]
    rng, depth = random.Random(3), 0 if needs.whole_sessions else 1
    found: list[Session] = []
    for place in range(6):
        found.append(session_of(f"s{place}", random_segment(rng, depth, rewards=False), [8, 9, 10]))
        found[-1].rewards = {"one": found[-1].reward or 0.0, "other": float(place % 2)}
        with_counterfactuals(found[-1])
    if needs.greedy:
        found[-1].phase = GREEDY
    return [as_group(found)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_and_loss_steps_on_forked_sessions_with_a_finite_loss(name: str, tiny_llama: Path) -> None:
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), settings_of(name))
    algorithm = trainer.algorithm
    groups = sessions(algorithm.needs)
    values: dict[NodeKey, list[float]] | None = None
    if algorithm.needs.values:
        values = {(s.id, n.id): [0.3] * len(n.token_ids) for group in groups for s in group.sessions for n in s.nodes}
    before = {key: tensor.clone() for key, tensor in trainer.model.state_dict().items()}
    credit = algorithm.credit(groups, values)
    metrics = trainer.step(pack(groups, credit, 256, sequence=algorithm.sequence, fields=algorithm.fields))
    after = trainer.model.state_dict()
    assert isfinite(metrics["loss"])
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.slow
def test_a_few_of_the_matrix_raise_the_reward_in_six_steps(tmp_path: Path) -> None:
    matrix = Matrix(tmp_path, steps=6)
    rises = {name: matrix.measure(*name).rise for name in (("sft",), ("grpo", "gspo"))}
    assert all(rise > MARGIN for rise in rises.values()), rises

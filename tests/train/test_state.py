"""What a checkpoint holds, saved and restored together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.advantages.rloo import Rloo
from agentrl.train.algorithms.credit import Credit, NodeKey, ids_by_group, trainable_nodes, weigh
from agentrl.train.forest.packing import pack
from agentrl.train.record.state import LearnedPolicy, RunState
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import MAIN, Group
from tests.rollout.test_stream import stream
from tests.train.trees import as_group, linear_session

REWARDS = [(1.0, 0.3), (0.1, 0.7), (0.9, 0.2), (0.35, 0.6)]


class Moving(Reinforce):
    """REINFORCE with a moving mean of rewards as its baseline."""

    def __init__(self, config: AlgoConfig | None = None) -> None:
        super().__init__(config)
        self.baseline = 0.0

    def credit(self, groups: Sequence[Group], values: Mapping[NodeKey, Sequence[float]] | None = None) -> Credit:
        scored = ids_by_group(groups)
        sessions = [session for members in scored.values() for session in members]
        nodes = [(session, node) for session in sessions for node in trainable_nodes(session)]
        rewards = {session.id: session.reward or 0.0 for session in sessions}
        found = {(s.id, node.id): (rewards[s.id] - self.baseline,) for s, node in nodes}
        self.baseline += 0.1 * (sum(rewards.values()) / len(rewards) - self.baseline)
        return Credit(weigh(scored, found, self.config))

    def state(self) -> dict[str, Any]:
        return {"baseline": self.baseline}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.baseline = state["baseline"]


def new_state(model: Path, algorithm: type[Algorithm], store: Store) -> RunState:
    config = AlgoConfig(name="reinforce", lr=0.05)
    trainer = TorchTrainer(model, TorchConfig(device="cpu"), config, total_steps=len(REWARDS))
    return RunState({MAIN: LearnedPolicy(trainer, algorithm(config))}, stream(steps=len(REWARDS)), store)


def train(state: RunState, steps: range) -> list[float]:
    """Take steps on given sessions; the advantages."""
    advantages: list[float] = []
    for step in steps:
        rewards = list(enumerate(REWARDS[step]))
        sessions = [linear_session(f"{step}{i}", [8, 9], [[30 + i, 31 + step]], reward=r) for i, r in rewards]
        for forest in pack([as_group(sessions)], state.main.algorithm.credit([as_group(sessions)]), 100):
            advantages += forest.advantage[forest.weight > 0].tolist()
            state.main.trainer.step([forest])
    return advantages


@pytest.mark.slow
def test_a_moving_baseline_goes_on_in_a_resumed_run_to_the_last_bit(tiny_llama: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "sessions.db") as store:
        straight, first, resumed = (new_state(tiny_llama, Moving, store) for _ in range(3))
        expected = train(straight, range(4))
        found = train(first, range(2))
        first.writer()(tmp_path / "step-2")
        resumed.restore(tmp_path / "step-2")
        found += train(resumed, range(2, 4))
    assert found == expected
    assert resumed.main.algorithm.state() == straight.main.algorithm.state()
    weights = dict(straight.main.trainer.weights())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in resumed.main.trainer.weights())


@pytest.mark.slow
def test_an_algorithm_without_a_state_refuses_anothers(tiny_llama: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "sessions.db") as store:
        new_state(tiny_llama, Moving, store).writer()(tmp_path / "step-0")
        with pytest.raises(ConfigError, match="keeps no state"):
            new_state(tiny_llama, Rloo, store).restore(tmp_path / "step-0")

"""What a critic says of a packed batch comes back to the nodes it was said of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.train.algorithms import gae
from agentrl.train.algorithms.advantages.ppo import PpoConfig
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, trainable_nodes
from agentrl.train.algorithms.values import compute_values
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers import Critic
from agentrl.types import Group, Session
from tests.train.trees import as_group, linear_session, path, random_session

PPO = PpoConfig()


class Weigher:
    """Says of a token how much its prefix weighs: a number that only the right path gives."""

    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        found = []
        for forest in forests:
            mass = torch.sin(forest.token_ids.double() * 3.0 + forest.position.double())
            before = forest.path_sum(mass) - mass
            found.append(torch.where(forest.weight > 0, before, 0.0))
        return found


def weight_of_prefix(session: Session, node: int, token: int) -> float:
    ids = [t for n in path(session, session.nodes[node].parent) for t in n.token_ids]
    ids += session.nodes[node].token_ids[:token]
    return float(torch.sin(torch.tensor(ids, dtype=torch.float64) * 3.0 + torch.arange(len(ids))).sum())


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([8, 30, 90, 1000]), together=st.booleans())
@settings(derandomize=True, deadline=None, max_examples=25)
def test_every_trainable_token_gets_the_value_of_its_own_prefix_however_the_batch_is_packed(
    seed: int, budget: int, together: bool
) -> None:
    rng = random.Random(seed)
    sessions = [random_session(rng, f"s{i}", [5, 6], depth=5, branching=3) for i in range(4)]
    groups = [as_group(sessions)] if together else [as_group([s], s.id) for s in sessions]
    values = compute_values(cast(Critic, Weigher()), groups, PPO, budget, seed)
    assert values.keys() == {(s.id, n.id) for s in sessions for n in trainable_nodes(s)}
    for session in sessions:
        for node in trainable_nodes(session):
            told, trained = values[session.id, node.id], gae.steps(node)
            assert [told[i] for i in trained] == pytest.approx(
                [weight_of_prefix(session, node.id, i) for i in trained], abs=1e-9
            )
            assert all(told[i] == 0.0 for i in range(len(told)) if i not in trained)


def test_sessions_without_a_reward_are_not_selected() -> None:
    asked: list[Any] = []

    class Listener(Weigher):
        def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
            asked.extend(forests)
            return super().values(forests)

    group: Group = as_group([linear_session("silent", [7], [[9]])])
    assert compute_values(cast(Critic, Listener()), [group], PPO, 100) == {}
    assert asked == []


def test_a_shared_token_learns_the_mean_return_by_weight_and_keeps_its_value() -> None:
    """Two sessions draw the same first token and part after it."""
    sessions = [linear_session(f"s{i}", [7, 8], [[10, 11 + i]]) for i in range(2)]
    told = {
        ("s0", 1): (NodeAdvantage(1.0, 0.3, values=[0, 0, 0.5, 0.25], returns=[0, 0, 1.0, 2.0]),),
        ("s1", 1): (NodeAdvantage(-1.0, 0.1, values=[0, 0, 0.5, -0.25], returns=[0, 0, 3.0, 4.0]),),
    }
    [forest] = pack([as_group(sessions)], Credit(told), 100)
    rows = forest.rows()
    assert rows.returns is not None
    assert rows.value is not None
    by_token = dict(
        zip(rows.token_ids.tolist(), zip(rows.value.tolist(), rows.returns.tolist(), strict=True), strict=True)
    )
    assert by_token == {10: (0.5, 1.5), 11: (0.25, 2.0), 12: (-0.25, 4.0)}


@pytest.mark.slow
def test_without_a_critic_forests_carry_neither_values_nor_returns() -> None:
    session = linear_session("s", [7, 8], [[10, 11]], reward=1.0)
    [forest] = pack([as_group([session])], Credit({("s", 1): (NodeAdvantage(1.0, 0.5),)}), 100)
    assert forest.value is None
    assert forest.returns is None

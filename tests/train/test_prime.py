"""PRIME: credit against the paper's equation, the reward model's update against cross-entropy on rows, and resuming."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from agentrl.config import TrainerConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.algorithms.advantages.prime import Prime, PrimeConfig
from agentrl.train.algorithms.credit import NodeKey
from agentrl.train.algorithms.gae import all_steps
from agentrl.train.algorithms.values import per_token
from agentrl.train.forest.packing import pack
from agentrl.train.trainers import Trainer, make_trainer
from agentrl.train.trainers.reward_model import RewardModel
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Session
from tests.train.backends.test_torch import CPU
from tests.train.trees import as_group, linear_session

ALGO = PrimeConfig(lr=1e-2, reward_beta=0.5)
BUDGETS = (24, 10_000)
"""Tokens of a forest: a row or two in each, and all in one."""


def ragged(seed: int) -> list[Group]:
    """Groups of one to four sessions of one to three turns."""
    rng = random.Random(seed)
    groups = []
    for g in range(3):
        members = []
        for i in range(rng.randint(1, 4)):
            turns = [[rng.randrange(8, 40) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 3))]
            reward = rng.choice((0.0, 1.0, rng.random()))
            members.append(linear_session(f"{g}-{i}", [8, 9 + g], turns, reward=reward, group=f"g{g}"))
        groups.append(as_group(members, f"g{g}"))
    return groups


def places(session: Session) -> list[tuple[int, int]]:
    """The nodes and places of a session's trained tokens, in order."""
    return [(node, i) for node, steps in all_steps(session).items() for i in steps]


def by_equation_5(
    group: Group, rewards: Mapping[NodeKey, Sequence[float]], gamma: float
) -> dict[tuple[str, int, int], float]:
    """arXiv:2502.01456, equation 5: leave-one-out of process rewards, discounted, and of outcomes."""
    each = {s.id: [rewards[s.id, node][i] for node, i in places(s)] for s in group.sessions}
    found = {}
    for session in group.sessions:
        others = [s for s in group.sessions if s.id != session.id]
        process = fmean([fmean(each[s.id]) for s in others]) if others else 0.0
        outcome = (session.reward or 0.0) - fmean([s.reward or 0.0 for s in others]) if others else 0.0
        for t, (node, i) in enumerate(places(session)):
            later = each[session.id][t:] if others else []
            found[session.id, node, i] = sum(gamma**s * (r - process) for s, r in enumerate(later)) + outcome
    return found


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.sampled_from([1.0, 0.9, 0.0]))
@pytest.mark.slow
def test_advantages_are_the_papers_equation(seed: int, gamma: float) -> None:
    groups, rng = ragged(seed), random.Random(seed)
    rewards = {
        (s.id, n.id): [rng.uniform(-1, 1) for _ in n.token_ids] for g in groups for s in g.sessions for n in s.nodes
    }
    shares = Prime(PrimeConfig(gamma=gamma)).credit(groups, rewards).shares
    for group in groups:
        for (session, node, i), expected in by_equation_5(group, rewards, gamma).items():
            (share,) = shares[session, node]
            assert isinstance(share.advantage, Sequence)
            assert share.advantage[i] == pytest.approx(expected, abs=1e-9)


def test_rewards_outside_0_and_1_are_refused_by_name() -> None:
    group = as_group([linear_session("s0", [8], [[9]], reward=1.5), linear_session("s1", [8], [[10]], reward=0.0)])
    with pytest.raises(InvalidInput, match=r"rewards from 0 to 1, and session s0 has 1\.5"):
        Prime().credit([group], {("s0", 1): [0.0] * 3, ("s1", 1): [0.0] * 3})
    with pytest.raises(InvalidInput, match="process rewards"):
        Prime().credit([group])


def rewards_of(trainer: TorchTrainer, groups: list[Group], budget: int = 64) -> dict[NodeKey, list[float]]:
    return per_token(groups, trainer.token_rewards, budget)


def step(trainer: TorchTrainer, groups: list[Group], budget: int = 64) -> dict[str, float]:
    credit = trainer.algorithm.credit(groups, rewards_of(trainer, groups))
    return trainer.step(pack(groups, credit, budget)) | credit.metrics


def reward_model(trainer: TorchTrainer) -> RewardModel:
    assert trainer.reward_model is not None
    return trainer.reward_model


def summed_logp(model: Any, session: Session) -> Tensor:
    """The log-probabilities of a linear session's trained tokens, summed, of a row through the model alone."""
    ids = [token for node in session.nodes for token in node.token_ids]
    trained = [trainable for node in session.nodes for trainable in node.trainable]
    logps = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    at = [i for i, each in enumerate(trained) if each]
    return logps[[i - 1 for i in at], [ids[i] for i in at]].sum()


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_the_reward_models_update_is_the_gradient_of_cross_entropy_on_rows(budget: int, tiny_llama: Path) -> None:
    """Of a model that has left its reference; two sessions begin with the same tokens."""
    groups = ragged(1)
    groups.append(
        as_group([linear_session(f"same{i}", [8, 20], [[30, 31, 32 + i]], reward=float(i)) for i in range(2)], "same")
    )
    trainer = TorchTrainer(tiny_llama, CPU, ALGO)
    for _ in range(2):
        step(trainer, groups)
    learned, base = reward_model(trainer), AutoModelForCausalLM.from_pretrained(tiny_llama)
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    plain.load_state_dict(learned.model.state_dict())
    sessions = [session for group in groups for session in group.sessions]
    with torch.no_grad():
        reference = [summed_logp(base, session) for session in sessions]
    total = torch.stack(
        [ALGO.reward_beta * (summed_logp(plain, s) - ref) for s, ref in zip(sessions, reference, strict=True)]
    )
    wanted = torch.tensor([session.reward for session in sessions])
    F.binary_cross_entropy_with_logits(total, wanted).backward()
    found = rewards_of(trainer, groups, budget)
    for session, expected in zip(sessions, total.tolist(), strict=True):
        assert sum(found[session.id, node][i] for node, i in places(session)) == pytest.approx(expected, abs=1e-4)
    learned.optimizer.step = lambda: 0.0  # type: ignore[method-assign]  # the gradient stays
    step(trainer, groups, budget)
    size = max(float(parameter.grad.abs().max()) for parameter in plain.parameters())
    for ours, theirs in zip(learned.model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert float((ours.grad - theirs.grad).abs().max()) <= 1e-5 * size


@pytest.mark.slow
def test_before_its_first_update_rewards_are_0_and_after_some_it_tells_outcomes_apart(tiny_llama: Path) -> None:
    sessions = [linear_session(f"s{i}", [8, 9], [[12 + i, 30, 31]], reward=float(i % 2)) for i in range(6)]
    trainer = TorchTrainer(tiny_llama, CPU, ALGO, total_steps=12)
    assert not any(map(any, rewards_of(trainer, [as_group(sessions)]).values()))
    metrics = [step(trainer, [as_group(sessions)]) for _ in range(12)]
    assert metrics[0]["reward_model/error"] == 0.5, "a model that is its reference expects one half"
    assert metrics[-1]["reward_model/accuracy"] == 1.0
    assert metrics[-1]["reward_model/error"] < 0.25


@pytest.mark.slow
def test_a_resumed_reward_model_learns_on_bit_for_bit(tmp_path: Path, tiny_llama: Path) -> None:
    groups = ragged(2)
    first, second = (TorchTrainer(tiny_llama, CPU, ALGO, total_steps=4) for _ in range(2))
    step(first, groups)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    for trainer in (first, second):
        step(trainer, groups)
    for one, other in ((first.model, second.model), (reward_model(first).model, reward_model(second).model)):
        pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def without_rewards(path: Path, config: TrainerConfig, algo: object, **more: object) -> Trainer:
    """A trainer of somebody else, as an import path names one."""

    class Plain:
        version, threads, deterministic = 0, None, True
        begin = step = logprobs = weights = save = load = export = close = lambda self: None

    return Plain()  # type: ignore[return-value]


@pytest.mark.slow
def test_a_trainer_without_a_reward_model_is_refused(tiny_llama: Path) -> None:
    config = TrainerConfig(name=f"{__name__}:without_rewards")
    with pytest.raises(ConfigError, match=r"algo=prime needs a reward model, which trainer=.* does not have"):
        make_trainer(tiny_llama, config, ALGO)

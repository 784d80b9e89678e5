"""Clip-Cov and KL-Cov against their formulas (arXiv:2505.22617, section 4), over a batch however it is split."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.base import Algorithm
from agentrl.train.algorithms.credit import Credit
from agentrl.train.algorithms.objective import objective
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.layout import Merge
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group
from tests.train.loss_references import ppo
from tests.train.test_sequences import table_logps
from tests.train.trees import VOCABULARY, as_group, leaf_credit, linear_session, random_session

Key = tuple[str, int, int]
"""A token: its session, its node, its place on its path."""


def algorithm(loss: str, **own: float) -> Algorithm:
    bounds = {"clip_low": 0.1, "clip_high": 0.2, "covariance_low": 0.05, "covariance_high": 0.5}
    settings = {"share": 0.1, **(bounds if loss == "clip_cov" else {"beta": 0.7}), **own}
    return make_algorithm(algorithm_settings({"name": "grpo", "loss": {"name": loss, **settings}}))


def batch(rng: random.Random) -> tuple[list[Group], Credit]:
    """Branching sessions, each judged differently at each leaf."""
    prompt = [rng.randrange(8, 48) for _ in range(3)]
    sessions = [random_session(rng, f"s{i}", prompt, depth=5, branching=3) for i in range(3)]
    credit, _ = leaf_credit(rng, sessions)
    return [as_group([session], session.id) for session in sessions], credit


def keys(forest: Forest) -> list[Key]:
    names = [forest.sessions[i] for i in forest.session_id.tolist()]
    return list(zip(names, forest.node_id.tolist(), forest.position.tolist(), strict=True))


def marked(forests: list[Forest]) -> set[Key]:
    found: set[Key] = set()
    for forest in forests:
        assert forest.marked is not None
        found |= {key for key, each in zip(keys(forest), forest.marked.tolist(), strict=True) if each}
    return found


def covariances(whole: Forest) -> dict[Key, float]:
    """Equation 10 of the paper, for a batch in one forest."""
    minus = torch.zeros_like(whole.advantage) if whole.advantage_minus is None else whole.advantage_minus
    logp, advantage = whole.behaviour_logp.tolist(), (whole.advantage.double() + minus.double()).tolist()
    trained = [i for i, weight in enumerate(whole.weight.tolist()) if weight > 0]
    mean_logp = statistics.fmean(logp[i] for i in trained) if trained else 0.0
    mean = statistics.fmean(advantage[i] for i in trained) if trained else 0.0
    at = keys(whole)
    return {at[i]: (logp[i] - mean_logp) * (advantage[i] - mean) for i in trained}


def naive(loss: str, whole: Forest, held: set[Key], table: Tensor) -> Tensor:
    """The batch's loss, token by token; two channels are two tokens of an advantage each."""
    total = torch.zeros((), dtype=torch.float64)
    now, old = table_logps(table, whole.token_ids, whole.position), whole.behaviour_logp.double()
    channels = [whole.advantage] if whole.advantage_minus is None else [whole.advantage, whole.advantage_minus]
    for i, key in enumerate(keys(whole)):
        ratio, weight = (now[i] - old[i]).exp(), float(whole.weight[i])
        for advantage in (float(channel[i]) for channel in channels):
            if loss == "kl_cov":
                total = total - weight * ratio * advantage
            elif key not in held:
                total = total + weight * ppo(ratio, advantage, 0.1, 0.2)
        if loss == "kl_cov" and key in held:
            total = total + weight * 0.7 * (now[i] - old[i]).abs()
    return total


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
@given(
    seed=st.integers(0, 10**6),
    budget=st.sampled_from((30, 70, 10_000)),
    merge=st.sampled_from(("mean", "channels")),
    share=st.sampled_from((1e-4, 0.1, 0.5, 1.0)),
)
@settings(deadline=None, max_examples=12)
def test_loss_and_gradient_are_those_of_the_paper_whatever_the_split(
    loss: str, seed: int, budget: int, merge: Merge, share: float
) -> None:
    rng = random.Random(seed)
    groups, credit = batch(rng)
    made = algorithm(loss, share=share)
    whole = pack(groups, credit, 10**6, merge=merge)
    forests = pack(groups, credit, budget, seed=seed, merge=merge)
    made.mark(forests)
    held = marked(forests)
    covariance = covariances(whole[0]) if whole else {}
    inside = {key for key, each in covariance.items() if loss == "kl_cov" or 0.05 < each < 0.5}
    assert held <= inside
    assert len(held) == min(len(inside), max(1, int(share * len(covariance))))
    if loss == "kl_cov":
        highest = sorted(covariance.values(), reverse=True)[: len(held)]
        assert sorted((covariance[key] for key in held), reverse=True) == pytest.approx(highest, abs=1e-12)
    if not whole:
        return
    table = 0.2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table.requires_grad_()
    ours = torch.zeros((), dtype=torch.float64)
    for forest in forests:
        forest.old_logp = forest.behaviour_logp.double()
        rows = forest.rows()
        logp = table_logps(table, rows.token_ids, forest.position[rows.target])
        ours = ours + objective(made, logp, torch.zeros_like(logp), rows)[0]
    expected = naive(loss, whole[0], held, table)
    (found,), (theirs,) = (torch.autograd.grad(each, table) for each in (ours, expected))
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    assert float((found - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=8)
def test_the_same_tokens_are_marked_in_any_split_and_any_order_of_groups(loss: str, seed: int) -> None:
    """Every session has the same tokens, so that many covariances are equal and the choice among them shows."""
    rng = random.Random(seed)
    sessions = [linear_session(f"s{i}", [8, 9], [[30, 31], [32, 33, 34]], reward=i % 2) for i in range(6)]
    credit = make_algorithm(algorithm_settings({"name": "grpo"})).credit([as_group(sessions)])
    made, found = algorithm(loss, share=0.15, **({} if loss == "kl_cov" else {"covariance_low": -1.0})), []
    for budget in (9, 10_000):
        groups = [as_group([session], session.id) for session in sessions]
        rng.shuffle(groups)
        forests = pack(groups, credit, budget, seed=budget)
        made.mark(forests)
        found.append(marked(forests))
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_a_step_marks_its_batch_and_a_loss_without_marks_says_what_is_missing(tiny_llama: Path) -> None:
    groups = [as_group([linear_session(str(n), [8, 9], [[30 + n, 31], [32]], reward=float(n)) for n in (0, 1)])]
    made = algorithm("kl_cov", share=0.5)
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), made.config.model_copy(update={"epochs": 2}))
    forests = pack(groups, made.credit(groups), 6)
    rows = forests[0].rows()
    with pytest.raises(InvalidInput, match=r"Algorithm\.mark"):
        objective(made, torch.zeros(len(rows)), torch.zeros(len(rows)), rows)
    assert trainer.step(forests)["policy/covariance_fraction"] == pytest.approx(0.5)


def test_bounds_in_the_wrong_order_are_refused_by_name() -> None:
    with pytest.raises((ConfigError, ValueError), match=r"covariance_low=2\.0 must be below covariance_high=1\.0"):
        algorithm("clip_cov", covariance_low=2.0, covariance_high=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_a_step_without_signal_marks_nothing(loss: str) -> None:
    """Its batch has no forest; runs ended there in their first step without a reward."""
    algorithm(loss).mark([])

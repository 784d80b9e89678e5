"""The exact expectation of each algorithm's gradient on a small decision process (`benchmarks.gradients`)."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from agentrl.train.algorithms import make_algorithm
from agentrl.train.algorithms.advantages.vine import VineConfig
from benchmarks.gradients import (
    EPISODES,
    Estimate,
    groups,
    logp,
    measure,
    names,
    policy,
    process_rewards,
    reward,
    samples,
    true_gradient,
)

FIXED = {"normalize": "constant", "constant_tokens": 1}
"""A denominator that does not depend on what was sampled."""


def of(name: str, **settings: object) -> Estimate:
    return measure({"name": name, **settings}, 2)


def test_all_episodes_and_groups_are_enumerated() -> None:
    chances = [float(logp(policy().detach(), each).sum().exp()) for each in EPISODES]
    assert math.fsum(chances) == pytest.approx(1)
    assert math.fsum(chance for _, chance in groups(2)) == pytest.approx(1)
    assert {len(each) for each in EPISODES} == {1, 2, 3}
    assert math.fsum(chance for _, chance in samples(make_algorithm(VineConfig()), 1)) == pytest.approx(1)


def test_the_true_gradient_is_that_of_the_mean_reward_by_differences() -> None:
    def mean(logits: torch.Tensor) -> float:
        return math.fsum(float(logp(logits, each).sum().exp()) * reward(each) for each in EPISODES)

    found, step = true_gradient(), 1e-5
    for turn in range(3):
        for action in range(3):
            moved = torch.zeros(3, 3, dtype=torch.float64)
            moved[turn, action] = step
            slope = (mean(policy().detach() + moved) - mean(policy().detach() - moved)) / (2 * step)
            assert float(found[turn, action]) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("reinforce", 1.0),
        ("rloo", 1.0),
        ("dr_grpo", 0.5),
        ("remax", 1.0),
        pytest.param("vine", 1.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_baselines_that_do_not_see_the_session_leave_no_bias_under_a_fixed_denominator(name: str, size: float) -> None:
    """A group's own mean, over n sessions, has (n - 1) / n of the gradient."""
    found = of(name, **FIXED)
    assert found.bias < 1e-6
    assert found.size == pytest.approx(size, rel=1e-6)


@pytest.mark.slow
def test_a_leave_one_out_baseline_lowers_the_variance() -> None:
    assert of("rloo", **FIXED).deviation < of("reinforce", **FIXED).deviation


def test_dividing_by_the_sessions_own_tokens_bends_the_gradient_where_turns_vary() -> None:
    assert of("rloo", normalize="rollout").bias > 0.05
    assert of("grpo").bias > 0.05


def test_process_rewards_are_advantages_whose_baseline_counts_as_often_as_turns_follow() -> None:
    """Less what the distance from the reference costs; so `prime` has a bias where `rloo` has none."""
    for far, near, chances in zip(process_rewards(0.05), process_rewards(1e6), policy().softmax(-1), strict=True):
        assert math.fsum(map(math.prod, zip(near, chances.tolist(), strict=True))) == pytest.approx(0, abs=1e-5)
        assert [a - b for a, b in pairwise(far)] == pytest.approx([a - b for a, b in pairwise(near)], abs=1e-4)
    assert of("prime", **FIXED).bias > 0.01


@pytest.mark.slow
def test_every_algorithm_has_a_finite_gradient_that_points_uphill() -> None:
    for name in names():
        found = of(name)
        assert found.size > 0, name
        assert math.isfinite(found.bias + found.deviation), name

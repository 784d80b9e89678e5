"""The loss terms against formulas written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.advantages.grpo import Grpo
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.advantages.rloo import Rloo
from agentrl.train.algorithms.advantages.sft import Sft
from agentrl.train.algorithms.losses import clipped, k3
from agentrl.train.algorithms.objective import Meter, objective
from agentrl.train.algorithms.tokens import Tokens
from agentrl.train.forest.forest import Rows

numbers = st.floats(-3, 3)


def one_row(
    advantage: float,
    *,
    minus: float | None = None,
    old: float | None = None,
    ref: float | None = None,
    weight: float = 1.0,
    behaviour: float = 0.0,
    version: int = 0,
) -> Rows:
    def value(x: float | None) -> torch.Tensor | None:
        return None if x is None else torch.tensor([x])

    index = torch.tensor([0])
    return Rows(
        predictor=index,
        target=index + 1,
        token_ids=index,
        weight=torch.tensor([weight]),
        advantage=torch.tensor([advantage]),
        temperature=torch.ones(1),
        behaviour_logp=torch.tensor([behaviour]),
        version=index + version,
        turn=index,
        session=index,
        agent=index,
        advantage_minus=value(minus),
        old_logp=value(old),
        ref_logp=value(ref),
    )


def tokens(logp: float | torch.Tensor, rows: Rows, version: int = 0) -> Tokens:
    x = logp if isinstance(logp, torch.Tensor) else torch.tensor([logp])
    return Tokens.of(x, torch.tensor([1.5]), rows, version)


@given(logp=numbers, old=numbers, advantage=numbers)
def test_the_clipped_loss_is_ppos(logp: float, old: float, advantage: float) -> None:
    r = math.exp(logp - old)
    expected = -min(r * advantage, min(max(r, 0.8), 1.3) * advantage)
    found = clipped(tokens(logp, one_row(advantage, old=old)), 0.2, 0.3)
    assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("advantage", "logp", "moves"), [(1, 0.5, False), (1, -0.5, True), (-1, 0.5, True), (-1, -0.5, False)]
)
def test_a_ratio_beyond_the_clip_has_no_gradient_in_the_direction_it_went(
    advantage: float, logp: float, moves: bool
) -> None:
    x = torch.tensor([logp], requires_grad=True)
    clipped(tokens(x, one_row(advantage, old=0.0)), 0.2, 0.2).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert bool(x.grad.abs() > 0) is moves


@given(logp=numbers, old=numbers, c=st.floats(0, 5), advantage=numbers)
def test_every_built_in_loss_is_positively_homogeneous_in_the_advantage(
    logp: float, old: float, c: float, advantage: float
) -> None:
    for algorithm in (Grpo(), Rloo(), Reinforce(), Sft()):
        scaled = algorithm.loss(tokens(logp, one_row(c * advantage, old=old)))
        plain = algorithm.loss(tokens(logp, one_row(advantage, old=old)))
        assert scaled.item() == pytest.approx(c * plain.item(), rel=1e-3, abs=1e-4)


@given(logp=numbers, behaviour=numbers, advantage=numbers, trained=st.integers(3, 5))
def test_a_token_of_an_older_version_has_a_ratio_against_what_sampled_it_and_a_current_one_exactly_one(
    logp: float, behaviour: float, advantage: float, trained: int
) -> None:
    rows = one_row(advantage, behaviour=behaviour, version=3)
    found = tokens(logp, rows, trained)
    assert bool(found.stale) is (trained > 3)
    ratio = found.ratio.item()
    assert ratio == pytest.approx(math.exp(logp - behaviour), rel=1e-4) if trained > 3 else ratio == 1.0
    x = torch.tensor([logp], requires_grad=True)
    for algorithm in (Rloo(), Reinforce()):
        loss = algorithm.loss(tokens(x, rows, trained))
        assert loss.item() == pytest.approx(-ratio * logp * advantage, rel=1e-3)
        assert trained > 3 or torch.equal(loss, -x * rows.advantage)
        (slope,) = torch.autograd.grad(loss.sum(), x)
        assert slope.item() == pytest.approx(-ratio * advantage, rel=1e-3)
    assert Sft().loss(tokens(logp, rows, trained)).item() == pytest.approx(-logp * advantage, rel=1e-5)


@given(logp=numbers, ref=numbers)
def test_k3_is_never_negative_and_zero_only_for_equals(logp: float, ref: float) -> None:
    value = k3(torch.tensor(logp), torch.tensor(ref)).item()
    assert value == pytest.approx(math.exp(ref - logp) - (ref - logp) - 1, rel=1e-3, abs=1e-4)
    assert value >= -1e-6


def test_k3_estimates_the_divergence_of_two_distributions() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-5)


def test_the_objective_counts_penalties_once_however_many_channels_there_are() -> None:
    algorithm = Rloo(AlgoConfig(name="rloo", kl_coef=0.5, entropy_coef=0.1))
    logp, entropy = torch.tensor([-1.0]), torch.tensor([2.0])
    rows = one_row(3.0, minus=-1.0, ref=-2.0, weight=0.25)
    expected = 0.25 * (3.0 - 1.0 + 0.5 * (math.exp(-1) + 1 - 1) - 0.1 * 2.0)
    loss, _ = objective(algorithm, logp, entropy, rows)
    assert loss.item() == pytest.approx(expected)


@pytest.mark.slow
def test_metrics_are_means_over_trained_tokens_and_of_the_mismatch_over_current_ones() -> None:
    meter = Meter()
    for advantage, minus, old, version in ((1.0, 0.0, -0.5, 1), (0.0, -1.0, -0.5, 1), (1.0, -1.0, 0.0, 0)):
        rows = one_row(advantage, minus=minus, old=old, behaviour=0.25, version=version)
        _, found = objective(Grpo(), torch.tensor([0.0]), torch.tensor([1.5]), rows, version=1)
        meter.add(found, rows, engine=True, first=True)
    metrics = meter.metrics()
    assert metrics["policy/clip_fraction"] == pytest.approx(1 / 3)
    assert metrics["policy/entropy"] == 1.5
    assert metrics["staleness/share"] == pytest.approx(1 / 3)
    assert metrics["policy/approx_kl"] == pytest.approx(2 / 3 * (math.exp(0.5) - 1.5), rel=1e-5)
    assert metrics["mismatch/abs_mean"] == metrics["mismatch/abs_max"] == 0.25
    assert metrics["mismatch/kl"] == pytest.approx(math.exp(-0.25) - 1 + 0.25)
    assert metrics["staleness/abs_mean"] == metrics["staleness/abs_max"] == 0.25

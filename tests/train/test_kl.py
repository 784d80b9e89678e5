"""The KL penalty: estimators, gradients, adaptive coefficients, and how these reach the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.kl import Estimator, estimate, kl_loss
from agentrl.train.algorithms.tokens import Tokens
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.test_torch import CPU, forests_for, parameters, same
from tests.train.test_losses import one_row
from tests.train.test_state import new_state

ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3")
logit_rows = st.lists(st.floats(-2, 2), min_size=4, max_size=4)


def every_token(logits: Tensor, ref: Tensor, old: Tensor, estimator: Estimator, gradient: str) -> Tensor:
    """The expectation over tokens of `old` of the penalty: what a batch of infinitely many tokens has."""
    chosen: Literal["estimator", "exact"] = "exact" if gradient == "exact" else "estimator"
    total = torch.zeros((), dtype=torch.float64)
    for token, share in enumerate(old.exp()):
        logp = logits.log_softmax(0)[token : token + 1]
        rows = one_row(0.0)
        rows.old_logp, rows.ref_logp = old[token : token + 1], ref[token : token + 1]
        total = total + share * kl_loss(Tokens.of(logp, torch.zeros(1), rows, 0), estimator, chosen).sum()
    return total


def gradient_of(value: Tensor, at: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, at, retain_graph=True)
    return found


@settings(max_examples=20, deadline=None)
@given(policy=logit_rows, reference=logit_rows, sampled=logit_rows, estimator=st.sampled_from(ESTIMATORS))
@pytest.mark.slow
def test_with_exact_gradients_every_estimator_has_the_gradient_of_the_divergence_whoever_sampled(
    policy: list[float], reference: list[float], sampled: list[float], estimator: Estimator
) -> None:
    """The divergence itself, summed over the vocabulary and differentiated, is the reference (arXiv:2506.09477)."""
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    ref, old = (torch.tensor(x, dtype=torch.float64).log_softmax(0) for x in (reference, sampled))
    logp = logits.log_softmax(0)
    divergence = (logp.exp() * (logp - ref)).sum()
    penalty = every_token(logits, ref, old, estimator, "exact")
    assert torch.allclose(gradient_of(penalty, logits), gradient_of(divergence, logits), atol=1e-9)
    if estimator != "k2":  # which is biased
        assert penalty.item() == pytest.approx(divergence.item(), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(policy=logit_rows, reference=logit_rows)
def test_an_estimators_own_derivative_is_0_for_k1_of_kl_for_k2_and_of_the_opposite_kl_for_k3(
    policy: list[float], reference: list[float]
) -> None:
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    ref = torch.tensor(reference, dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    here, opposite = (logp.exp() * (logp - ref)).sum(), (ref.exp() * (ref - logp)).sum()
    expected = (torch.zeros(4, dtype=torch.float64), gradient_of(here, logits), gradient_of(opposite, logits))
    for estimator, wanted in zip(ESTIMATORS, expected, strict=True):
        found = gradient_of(every_token(logits, ref, logp.detach(), estimator, "estimator"), logits)
        assert torch.allclose(found, wanted, atol=1e-9)


def test_estimates_are_schulmans_formulas() -> None:
    logp, ref = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -0.5])
    assert estimate(logp, ref, "k1").tolist() == [0.5, -1.5]
    assert estimate(logp, ref, "k2").tolist() == [0.125, 1.125]
    assert estimate(logp, ref, "k3").tolist() == pytest.approx([0.6065307 - 0.5, 4.4816891 - 2.5], rel=1e-5)


def test_an_estimate_without_a_gradient_is_refused() -> None:
    with pytest.raises(ValidationError, match="mean 0"):
        AlgoConfig(kl_coef=0.1, kl_estimator="k1")
    AlgoConfig(kl_coef=0.1, kl_estimator="k1", kl_as="reward")
    AlgoConfig(kl_coef=0.1, kl_estimator="k1", kl_gradient="exact")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3)), max_size=6))
def test_adaptive_coefficients_follow_the_papers_rules(measured: list[tuple[float, float]]) -> None:
    """Written from Ziegler et al. (arXiv:1909.08593, section 2.2) and Skywork-OR1 (arXiv:2505.22312).

    The bounds are those of Skywork-OR1's training scripts (`max_ent_coef`, `min_ent_coef`).
    """
    entropy_settings = {"entropy_coef": 0.002, "entropy_target": 1.0, "entropy_rate": 0.001, "entropy_coef_max": 0.0035}
    config = AlgoConfig(kl_coef=0.3, kl_target=0.2, kl_rate=0.1, **entropy_settings)
    adaptive, beta, weight, active = Adaptive.of(config), 0.3, 0.002, True
    for kl, entropy in measured:
        adaptive.update(config, {"policy/kl_reference": kl, "policy/entropy": entropy})
        beta *= 1 + 0.1 * max(-0.2, min(0.2, kl / 0.2 - 1))
        weight = min(0.0035, max(0.0, weight + (0.001 if entropy < 1 else -0.001 if entropy > 1 else 0.0)))
        active = entropy <= 1
        again = Adaptive.of(config)
        again.restore(orjson.loads(orjson.dumps(adaptive.state())), config)
        assert again == adaptive
    assert adaptive.kl_coef == pytest.approx(beta)
    assert adaptive.entropy_coef == pytest.approx(weight if active else 0.0)


def test_fixed_coefficients_are_todays_settings_whatever_a_checkpoint_has() -> None:
    adaptive = Adaptive.of(AlgoConfig(kl_coef=0.3, kl_target=0.2))
    fixed = AlgoConfig(kl_coef=0.5)
    other = Adaptive.of(fixed)
    other.restore(adaptive.state(), fixed)
    assert other.kl_coef == 0.5


@pytest.mark.slow
def test_a_trainers_loss_has_the_coefficients_of_the_state_that_its_step_is_given(tiny_llama: Path) -> None:
    """Its own instance of the algorithm used to keep those that the phase began with."""
    adaptive = AlgoConfig(name="reinforce", lr=1e-2, kl_coef=0.5, kl_target=0.1, entropy_target=2.0)
    fixed = AlgoConfig(name="reinforce", lr=1e-2, kl_coef=0.25, entropy_coef=0.003)
    one, other = TorchTrainer(tiny_llama, CPU, adaptive), TorchTrainer(tiny_llama, CPU, fixed)
    algorithm = Reinforce(adaptive)
    algorithm.adaptive.kl_coef, algorithm.adaptive.entropy_weight = 0.25, 0.003
    for step in range(2):
        one.step(forests_for(fixed, step), algorithm.snapshot())
        other.step(forests_for(fixed, step))
    assert same(parameters(one), parameters(other))


@pytest.mark.slow
def test_adaptive_coefficients_are_part_of_a_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    class Adapting(Reinforce):
        def __init__(self, config: AlgoConfig | None = None) -> None:
            super().__init__(AlgoConfig(name="reinforce", kl_coef=0.1, kl_target=0.2))

    with Store(tmp_path / "sessions.db") as store:
        state, resumed = (new_state(tiny_llama, Adapting, store) for _ in range(2))
        state.main.algorithm.learned({"policy/kl_reference": 1.0})
        state.writer()(tmp_path / "step-1")
        resumed.restore(tmp_path / "step-1")
    assert resumed.main.algorithm.adaptive.kl_coef == pytest.approx(0.102)
    assert resumed.main.algorithm.snapshot() == state.main.algorithm.snapshot()

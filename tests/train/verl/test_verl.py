"""Advantages, losses and KL estimates against verl's own functions, on random ragged rows: values and gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import NodeAdvantage
from agentrl.train.algorithms.kl import kl_loss
from agentrl.train.algorithms.tokens import Tokens
from tests.conftest import need
from tests.train.ragged_rows import OPENING, Rows, loss_and_gradient, near

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # on a busy machine importing them takes minutes
ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / ".venv-verl"

Case = dict[str, Any]
Result = tuple[Tensor, Tensor]


SEEDS = range(3)
TWO = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}
OURS = {"clip_low": 0.1, "clip_high": 0.2}
LOSSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "clipped": ("vanilla", {**OURS, "dual_clip": 1.3}, {**TWO, "clip_ratio_c": 1.3}),
    "gspo": ("gspo", OURS, TWO),
    "gspo_token": ("gspo", OURS, TWO),
    "gmpo": ("geo_mean", OURS, TWO),
    "cispo": ("cispo", OURS, TWO),
    "sapo": ("sapo", {"tau_positive": 1.5, "tau_negative": 2.0}, {"tau_pos": 1.5, "tau_neg": 2.0}),
    "dro": ("dro", {"beta": 0.3}, {"policy_loss": {"dro_beta": 0.3}}),
    "dppo": ("dppo_tv", {"threshold": 0.05}, {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05, "clip_ratio_c": 20.0}),
    "dppo, kl": (
        "dppo_kl",
        {"threshold": 0.01, "divergence": "kl", "ratio_max": 1.1},
        {"clip_ratio_low": 0.01, "clip_ratio_high": 0.01, "clip_ratio_c": 1.1},
    ),
    "importance_sampling": ("gpg", {}, {}),
    "clip_cov": (
        "clip_cov",
        {"clip_low": 1.0, "clip_high": 10.0, "share": 1.0, "covariance_low": 0.2, "covariance_high": 1.0},
        {
            **{"clip_ratio_low": 1.0, "clip_ratio_high": 10.0},
            "policy_loss": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.2, "clip_cov_ub": 1.0},
        },
    ),
    "kl_cov": ("kl_cov", {"share": 0.2, "beta": 0.7}, {"policy_loss": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7}}),
}
"""Our loss: verl's name for it, our settings and verl's. Clip-Cov takes all candidates here, since each side draws some
at its own random; verl's `gpg` has no ratio, so there both policies are the same."""


def old(loss: str, rows: Rows) -> Tensor:
    return rows.logp if loss == "importance_sampling" else rows.old


ADVANTAGES: dict[str, tuple[str, dict[str, Any], Callable[[Rows], dict[str, Any]]]] = {
    "grpo": ("grpo", {}, lambda r: {"index": np.array(r.index), "epsilon": 1e-4}),
    "dr_grpo": ("grpo", {}, lambda r: {"index": np.array(r.index), "norm_adv_by_std_in_grpo": False}),
    "rloo": ("rloo", {}, lambda r: {"index": np.array(r.index)}),
    "opo": ("opo", {}, lambda r: {"index": np.array(r.index)}),
    "reinforce_pp": ("reinforce_plus_plus", {}, lambda r: {"config": {"gamma": 1.0}}),
    "reinforce_pp_baseline": ("reinforce_plus_plus_baseline", {}, lambda r: {"index": np.array(r.index)}),
    "remax": ("remax", {}, lambda r: {"reward_baselines": r.baseline[r.index]}),
    "gdpo": (
        "gdpo",
        {"weights": {"right": 1.0, "short": 0.5}},
        lambda r: {
            **{"index": np.array(r.index), "epsilon": 1e-4},
            "config": {"gdpo_reward_keys": ["right", "short"], "gdpo_reward_weights": [1.0, 0.5]},
            "non_tensor_batch": {"right": r.reward.numpy(), "short": r.short.numpy()},
            "batch": {
                "prompts": torch.zeros(len(r.index), 1),
                "attention_mask": torch.cat((r.mask[:, :1], r.mask), 1).long(),
            },
        },
    ),
    "ppo": ("gae", {"gamma": 0.9, "gae_lambda": 0.8}, lambda r: {"values": r.values, "gamma": 0.9, "lam": 0.8}),
}
KLS = {"k1": ("k1", "estimator"), "k2": ("k2", "estimator"), "k3": ("k3", "estimator"), "k3+": ("k3", "exact")}


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], Result]:
    """verl's results by kind, our name and seed; one process computes all of them."""
    need((PACKAGES / "installed").exists(), "verl's functions are not there: make .venv-verl/installed")
    cases: dict[tuple[str, str, int], Case] = {}
    for seed in SEEDS:
        rows = Rows(seed)
        for name, (theirs, _, settings) in LOSSES.items():
            spread = rows.advantage[:, None] * rows.mask
            cases["loss", name, seed] = {
                **{"name": theirs, "logp": rows.logp, "old": old(name, rows), "advantage": spread},
                **{"mask": rows.mask, "mode": "seq-mean-token-mean", "settings": dict(settings)},
            }
        for name, (theirs, _, more) in ADVANTAGES.items():
            cases["advantage", name, seed] = {
                **{"name": theirs, "rewards": rows.rewards, "mask": rows.mask, "more": more(rows)}
            }
        for name in KLS:
            cases["kl", name, seed] = {"name": name, "logp": rows.logp, "ref": rows.ref}
    folder = tmp_path_factory.mktemp("verl")
    torch.save([{"kind": kind, **case} for (kind, _, _), case in cases.items()], folder / "cases.pt")
    command = [sys.executable, str(Path(__file__).with_name("compute.py")), str(PACKAGES)]
    subprocess.run([*command, str(folder / "cases.pt"), str(folder / "results.pt")], check=True, timeout=600)
    return dict(zip(cases, torch.load(folder / "results.pt"), strict=True))


@pytest.mark.parametrize("budget", [12, 10_000])
@pytest.mark.parametrize("name", LOSSES)
def test_a_policy_loss_and_its_gradient_are_verls(name: str, budget: int, verl: dict[Any, Result]) -> None:
    """With each row in a micro-batch of its own, and with all in one."""
    for seed in SEEDS:
        rows = Rows(seed)
        settings = {"name": name.partition(",")[0], **LOSSES[name][1]}
        algorithm = make_algorithm(algorithm_settings({"name": "grpo", "loss": settings}))
        count = len(rows.index)
        shares = {
            (str(i), 1): NodeAdvantage(float(rows.advantage[i]), 1 / (count * length))
            for i, length in enumerate(rows.lengths)
        }
        total, gradient = loss_and_gradient(algorithm, rows, shares, old(name, rows), budget)
        value, theirs = verl["loss", name, seed]
        assert near(total, value)
        assert near(gradient, theirs)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_verls(name: str, verl: dict[Any, Result]) -> None:
    """Of GAE the returns: its advantages are standardised by other weights here."""
    for seed in SEEDS:
        rows = Rows(seed)
        made = make_algorithm(algorithm_settings({"name": name, **ADVANTAGES[name][1]}))
        held = {(str(i), 1): [0.0] * OPENING + rows.values[i, :n].tolist() for i, n in enumerate(rows.lengths)}
        shares = made.credit(rows.groups(), held if made.needs.critic else None).shares
        found = torch.zeros_like(rows.mask)
        for i, length in enumerate(rows.lengths):
            (share,) = shares[str(i), 1]
            values = share.returns if name == "ppo" else share.advantage
            found[i, :length] = torch.tensor(values[OPENING:] if isinstance(values, list) else values)
        advantage, returns = verl["advantage", name, seed]
        theirs = (returns if name == "ppo" else advantage) * rows.mask
        assert near(found, theirs)


@pytest.mark.parametrize("name", KLS)
def test_kl_estimates_and_their_gradients_are_verls(name: str, verl: dict[Any, Result]) -> None:
    """`kl_gradient=exact` is verl's `+`, where the tokens are the current policy's own."""
    estimator, gradient = KLS[name]
    for seed in SEEDS:
        rows = Rows(seed)
        logp, none = rows.logp.flatten().clone().requires_grad_(), torch.zeros(rows.logp.numel())
        index = none.long()
        fields: dict[str, Any] = {
            **{"logp": logp, "entropy": none, "old_logp": logp.detach(), "behaviour_logp": logp.detach()},
            **{"ref_logp": rows.ref.flatten(), "advantage": none, "weight": none, "version": index},
            **{"trained_version": 0, "turn": index, "session": index, "agent": index},
        }
        tokens = Tokens(**fields)
        value = kl_loss(tokens, estimator, gradient)  # type: ignore[arg-type]
        (slope,) = torch.autograd.grad(value.sum(), logp)
        theirs = verl["kl", name, seed]
        assert near(value.detach(), theirs[0].flatten())
        assert near(slope, theirs[1].flatten())

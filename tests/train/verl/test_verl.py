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
from agentrl.train.credit import Credit, NodeAdvantage, NodeKey
from agentrl.train.forest import sequence_count
from agentrl.train.kl import kl_loss
from agentrl.train.objective import add_sums, empty_sums, objective
from agentrl.train.packing import pack
from agentrl.train.tokens import Tokens
from agentrl.types import GREEDY, Group, Session
from tests.conftest import need
from tests.train.trees import as_group, linear_session

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / ".venv-verl"
PROMPT, OPENING = 2, 2
"""Tokens of a row before its first trained one: the prompt's, and those that open a turn."""

Case = dict[str, Any]
Result = tuple[Tensor, Tensor]


class Rows:
    """Ragged rows: groups of two to four, of one to nine tokens each; arrays are [B, L], float64."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
            return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

        sizes = torch.randint(2, 5, (4,), generator=generator).tolist()
        self.index = [g for g, size in enumerate(sizes) for _ in range(size)]
        count = len(self.index)
        self.lengths = torch.randint(1, 10, (count,), generator=generator).tolist()
        self.mask = (torch.arange(9)[None] < torch.tensor(self.lengths)[:, None]).double()
        self.reward, self.short = random(count), random(count)
        self.baseline = random(len(sizes))
        self.advantage = random(count, low=-2, high=2)
        self.logp = random(count, 9, low=-3, high=-0.1)
        self.old = self.logp + random(count, 9, low=-0.4, high=0.4).clamp(max=-self.logp - 0.05)
        self.ref = self.logp + random(count, 9, low=-0.5, high=0.5)
        self.values = random(count, 9)

    @property
    def rewards(self) -> Tensor:
        """The reward at each row's last token."""
        found = torch.zeros_like(self.mask)
        found[torch.arange(len(self.lengths)), torch.tensor(self.lengths) - 1] = self.reward
        return found

    def sessions(self) -> list[Session]:
        """The rows as sessions; no two begin with the same token."""
        found = []
        for i, (group, length) in enumerate(zip(self.index, self.lengths, strict=True)):
            ids = [[100 + i, *range(30, 29 + length)]]
            session = linear_session(str(i), [8, 9], ids, reward=float(self.reward[i]), group=str(group))
            session.rewards = {"right": float(self.reward[i]), "short": float(self.short[i])}
            found.append(session)
        return found

    def groups(self) -> list[Group]:
        """The sessions, with a greedy one beside each group."""
        found = []
        for g, baseline in enumerate(self.baseline.tolist()):
            greedy = linear_session(f"greedy{g}", [8, 9], [[200]], reward=baseline, group=str(g))
            greedy.phase = GREEDY
            members = [session for session in self.sessions() if session.group == str(g)]
            found.append(as_group([*members, greedy], str(g)))
        return found


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


def near(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours.double() - theirs.double()).abs().max()) <= 1e-6 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("budget", [12, 10_000])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.slow
def test_a_policy_loss_and_its_gradient_are_verls(name: str, budget: int, verl: dict[Any, Result]) -> None:
    """With each row in a micro-batch of its own, and with all in one."""
    for seed in SEEDS:
        rows = Rows(seed)
        settings = {"name": name.partition(",")[0], **LOSSES[name][1]}
        algorithm = make_algorithm(algorithm_settings({"name": "grpo", "loss": settings}))
        sessions, count = rows.sessions(), len(rows.index)
        shares: dict[NodeKey, tuple[NodeAdvantage, ...]] = {
            (session.id, 1): (NodeAdvantage(float(rows.advantage[i]), 1 / (count * rows.lengths[i])),)
            for i, session in enumerate(sessions)
        }
        forests = pack([as_group(sessions)], Credit(shares), budget, sequence=algorithm.sequence)
        at = [(f.session_id, f.position - PROMPT - OPENING) for f in forests]
        for forest, (row, place) in zip(forests, at, strict=True):
            inside = place.clamp(0, 8)
            forest.behaviour_logp = rows.logp[row, inside]  # what verl ranks covariances by
            forest.old_logp = old(name, rows)[row, inside]
            forest.weight, forest.advantage = exact(forest.weight, rows, row), forest.advantage.double()
        algorithm.mark(forests)
        logp = rows.logp.clone().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        sums = empty_sums(algorithm, sequence_count(forests))
        for last in (False, True):
            for forest in forests:
                each = forest.rows()
                now = logp[each.session, forest.position[each.target] - PROMPT - OPENING]
                if last:
                    total = total + objective(algorithm, now, torch.zeros_like(now), each, sums=sums)[0]
                elif algorithm.sequence is not None:
                    add_sums(algorithm, sums, now, each, 0)
        (gradient,) = torch.autograd.grad(total, logp)
        value, theirs = verl["loss", name, seed]
        assert near(total.detach(), value)
        assert near(gradient, theirs)


def exact(weight: Tensor, rows: Rows, row: Tensor) -> Tensor:
    """The weights in float64: those of a forest are rounded."""
    return torch.where(weight > 0, 1 / (len(rows.index) * torch.tensor(rows.lengths).double()[row]), 0.0)


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.slow
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
@pytest.mark.slow
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

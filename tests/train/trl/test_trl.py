"""Advantages and losses against TRL's own trainers, on random ragged rows: values and gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.rollout.sources.judged import MARGIN, PAIR, mark_ends
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import weigh
from agentrl.train.algorithms.objective import add_sums, empty_sums, objective
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack
from benchmarks.vs_trl_pairs import batches, build_model, ours, run, token_ratio
from tests.conftest import need
from tests.train.ragged_rows import RaggedPairs, Rows, loss_and_gradient, near
from tests.train.trees import as_group, linear_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # on a busy machine importing them takes minutes
ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / ".venv-trl-functions"
SEEDS = range(3)
OURS = {"name": "clipped", "clip_low": 0.1, "clip_high": 0.2}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss": OURS}, {"loss_type": "grpo"}),
    "bnpo": ({"loss": OURS, "normalize": "token"}, {"loss_type": "bnpo"}),
    "dapo": (
        {"name": "dapo", "loss": {"name": "clipped"}},
        {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    ),
    "dr_grpo": (
        {"name": "dr_grpo", "loss": OURS, "constant_tokens": 7},
        {"loss_type": "dr_grpo", "max_completion_length": 7},
    ),
    "two-sided clip": ({"loss": {**OURS, "dual_clip": 1.3}}, {"loss_type": "grpo", "delta": 1.3}),
    "gspo": (
        {"name": "gspo", "loss": {**OURS, "name": "gspo"}},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "cispo": (
        {"loss": {"name": "cispo", "clip_low": 1.0, "clip_high": 0.2}, "normalize": "token"},
        {"loss_type": "cispo", "epsilon_high": 1.2},
    ),
    "sapo": ({"loss": {"name": "sapo", "tau_positive": 1.5, "tau_negative": 2.0}}, {"loss_type": "sapo"}),
    "vespo": ({"loss": {"name": "vespo"}, "normalize": "token"}, {"loss_type": "vespo"}),
    "kl, k3": ({"loss": OURS, "kl_coef": 0.3, "kl_estimator": "k3"}, {"loss_type": "grpo", "beta": 0.3}),
    "kl, k3, exact": (
        {"loss": OURS, "kl_coef": 0.3, "kl_estimator": "k3", "kl_gradient": "exact"},
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True},
    ),
}
"""Our settings, and TRL's. Where neither says how losses are averaged, it is by session, then by token."""
ADVANTAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"scale_rewards": "group"}),
    "dr_grpo": ("grpo", {"scale_rewards": "none"}),
    "rloo": ("rloo", {}),
}


PREFERENCES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "dpo": ({"name": "dpo", "beta": 0.3}, "dpo", {"loss_types": ["sigmoid"], "beta": 0.3}),
    "dpo per token": (
        {"name": "dpo", "beta": 0.3, "per_token": True},
        "dpo",
        {"loss_types": ["sigmoid_norm"], "beta": 0.3},
    ),
    "ipo": ({"name": "ipo", "beta": 0.3}, "dpo", {"loss_types": ["ipo"], "beta": 0.3}),
    "robust": (
        {"name": "robust", "label_smoothing": 0.2},
        "dpo",
        {"loss_types": ["robust"], "label_smoothing": 0.2},
    ),
    "kto": (
        {"name": "kto", "desirable_weight": 1.5, "undesirable_weight": 0.5, "beta": 0.3},
        "kto",
        {"loss_type": "kto", "desirable_weight": 1.5, "undesirable_weight": 0.5, "beta": 0.3},
    ),
    "simpo": (
        {"name": "simpo", "gamma": 0.7, "label_smoothing": 0.1},
        "cpo",
        {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.7, "label_smoothing": 0.1, "cpo_alpha": 0.0},
    ),
    "simpo with likelihood": (
        {"name": "simpo", "nll_coef": 0.5},
        "cpo",
        {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0.5},
    ),
    "cpo": ({"name": "cpo"}, "cpo", {"loss_type": "sigmoid"}),
    "orpo": ({"name": "orpo"}, "orpo", {"loss_type": "orpo"}),
}
"""Our loss, and TRL's trainer with its settings; TRL's ORPO takes the likelihood of the prompt besides, here none."""


SCORES: dict[str, dict[str, Any]] = {
    "plain": {"margin": False, "center": None},
    "margins": {"margin": True, "center": None},
    "centred": {"margin": True, "center": 0.2},
}
"""Settings of a reward model's loss."""


def members(rows: Rows, group: int) -> list[int]:
    return [i for i, each in enumerate(rows.index) if each == group]


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """TRL's results by kind, our name, seed and group; one process computes all of them."""
    need((PACKAGES / "installed").exists(), "TRL's trainers are not there: make .venv-trl-functions/installed")
    cases: dict[Any, dict[str, Any]] = {}
    for seed in SEEDS:
        rows = Rows(seed)
        given = {"logp": rows.logp, "old": rows.old, "ref": rows.ref, "advantage": rows.advantage, "mask": rows.mask}
        for name, (_, settings) in LOSSES.items():
            cases["loss", name, seed] = {"kind": "loss", "trainer": "grpo", "settings": settings, **given}
        for name, (trainer, settings) in ADVANTAGES.items():
            for group in set(rows.index):
                cases["advantage", name, seed, group] = {
                    **{"kind": "advantage", "trainer": trainer, "settings": settings},
                    "rewards": rows.reward[members(rows, group)],
                }
        pairs = RaggedPairs(seed)
        for name, (_, trainer, settings) in PREFERENCES.items():
            given = {"logp": pairs.logp, "ref": pairs.ref * pairs.mask, "mask": pairs.mask}
            given |= {"kl_logp": pairs.mismatched(pairs.logp), "kl_ref": pairs.mismatched(pairs.ref)}
            cases["preference", name, seed] = {"kind": "preference", "trainer": trainer, "settings": settings, **given}
        for name, given in SCORES.items():
            scores = torch.cat([pairs.logp[:, 0], pairs.ref[:, 0]]) * 3
            margin = {"margin": pairs.moved[:, 0] * 5} if given["margin"] else {}
            case = {"kind": "reward", "trainer": "reward", "scores": scores, "center": given["center"], **margin}
            cases["reward", name, seed] = case
    folder = tmp_path_factory.mktemp("trl")
    torch.save(list(cases.values()), folder / "cases.pt")
    command = [sys.executable, str(Path(__file__).with_name("compute.py")), str(PACKAGES)]
    subprocess.run([*command, str(folder / "cases.pt"), str(folder / "results.pt")], check=True, timeout=600)
    return dict(zip(cases, torch.load(folder / "results.pt"), strict=True))


@pytest.mark.parametrize("budget", [12, 10_000])
@pytest.mark.parametrize("name", LOSSES)
def test_a_policy_loss_with_its_denominator_and_its_gradient_are_trls(
    name: str, budget: int, trl: dict[Any, Any]
) -> None:
    """With each row in a micro-batch of its own, and with all in one."""
    for seed in SEEDS:
        rows = Rows(seed)
        algorithm = make_algorithm(algorithm_settings({"name": "grpo", **LOSSES[name][0]}))
        groups = {str(g): [s for s in rows.sessions() if s.group == str(g)] for g in set(rows.index)}
        advantages = {(str(i), 1): [float(a)] for i, a in enumerate(rows.advantage)}
        shares = {key: share for key, (share,) in weigh(groups, advantages, algorithm.config).items()}
        total, gradient = loss_and_gradient(algorithm, rows, shares, rows.old, budget)
        value, theirs = trl["loss", name, seed]
        assert near(total, value)
        assert near(gradient, theirs)


@pytest.mark.parametrize("budget", [12, 10_000])
@pytest.mark.parametrize("name", PREFERENCES)
def test_a_loss_of_preferences_and_its_gradient_are_trls(name: str, budget: int, trl: dict[Any, Any]) -> None:
    """With each sequence in a micro-batch of its own, and with all in one; KTO's baseline is the whole batch's."""
    for seed in SEEDS:
        algo = algorithm_settings({"name": "kto" if name == "kto" else "dpo", "loss": PREFERENCES[name][0]})
        total, gradient = RaggedPairs(seed).loss_and_gradient(make_algorithm(algo), budget)
        value, theirs = trl["preference", name, seed]
        assert near(total, value)
        assert near(gradient, theirs)


@pytest.mark.parametrize("budget", [12, 10_000])
@pytest.mark.parametrize("name", SCORES)
def test_a_reward_models_loss_and_its_gradient_by_scores_are_trls(name: str, budget: int, trl: dict[Any, Any]) -> None:
    for seed in SEEDS:
        pairs, given = RaggedPairs(seed), SCORES[name]
        scores = (torch.cat([pairs.logp[:, 0], pairs.ref[:, 0]]) * 3).requires_grad_()
        margin = pairs.moved[:, 0] * 5 if given["margin"] else torch.zeros(10)
        sessions = []
        for i in range(20):
            session = linear_session(str(i), [8, 9, 20 + i % 10], [list(range(30, 31 + i % 3))], demonstrated=True)
            session.reward, session.info = float(i < 10), {PAIR: i % 10, MARGIN: float(margin[i % 10])}
            mark_ends(session)
            sessions.append(session)
        settings = {"name": "reward_model", "center_coef": given["center"] or 0.0}
        algorithm = make_algorithm(algorithm_settings(settings))
        groups = [as_group(sessions)]
        forests = pack(groups, algorithm.credit(groups), budget, sequence="session", fields=algorithm.fields)
        sums, total = empty_sums(algorithm, sequence_count(forests)), torch.zeros((), dtype=torch.float64)
        for last in (False, True):
            for forest in forests:
                rows = forest.rows()
                now = scores[torch.tensor([int(forest.sessions[number]) for number in rows.session])]
                if last:
                    total = total + objective(algorithm, now, torch.zeros_like(now), rows, sums=sums)[0]
                else:
                    add_sums(algorithm, sums, now, rows, 0)
        (gradient,) = torch.autograd.grad(total, scores)
        value, theirs = trl["reward", name, seed]
        assert near(total.detach(), value)
        assert near(gradient, theirs)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_trls(name: str, trl: dict[Any, Any]) -> None:
    for seed in SEEDS:
        rows = Rows(seed)
        shares = make_algorithm(algorithm_settings({"name": name})).credit(rows.groups()).shares
        for group in set(rows.index):
            ours = [float(shares[str(i), 1][0].advantage) for i in members(rows, group)]  # type: ignore[arg-type]
            assert near(torch.tensor(ours, dtype=torch.float64), trl["advantage", name, seed, group])


@pytest.mark.usefixtures("trl")  # which says where TRL is absent
def test_steps_of_dpo_on_pairs_with_a_shared_prompt_are_those_of_trls_trainer_on_half_the_tokens(
    tmp_path: Path,
) -> None:
    """The small form of `python -m benchmarks.vs_trl pairs`."""
    model = build_model(tmp_path / "model", layers=2, width=32, heads=4, kv_heads=4, mlp=64)
    given = batches(40, 4, 3, 100)
    mine, other = ours(str(model), given), run("trl", model, given)
    assert mine["losses"] == pytest.approx(other["losses"], abs=1e-6)
    assert mine["losses"][2] < mine["losses"][0]
    assert token_ratio(40, 4) < 0.6
    assert len(mine["seconds"]) == len(other["seconds"]) == 3

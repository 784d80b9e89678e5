"""Algorithms from outside the package, each in one file, in short real runs; and the choice of groups."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import agentrl
from agentrl.train.algorithms import Choice, algorithm_settings, make_algorithm
from agentrl.train.algorithms.advantages.grpo import Grpo
from agentrl.train.algorithms.selection import chooser, select
from agentrl.types import Group, Message, Session, StepResult, Task
from tests.train.test_losses import one_row, tokens
from tests.train.trees import as_group, linear_session

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"
SHORT: dict[str, Any] = {
    **{"steps": 2, "eval.tasks": 1, "rollout.turn_tokens": 6, "algo.lr": 1e-3},
    **{"rollout.groups_per_step": 4, "rollout.group_size": 2},
}


class Parity(agentrl.Env):
    """Rewards an answer whose last token is even: about half of an untrained model's."""

    splits = ("train", "eval")

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"id": f"{split}-{i}"} for i in range(40)]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        return f"Say something about {task.id}."

    async def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)

    @agentrl.reward(weight=1.0)
    def even(self, session: Session) -> float:
        return float(session.nodes[-1].token_ids[-1] % 2 == 0)


class Nothing(Grpo):
    """Drops every group of the first step."""

    def select(self, group: Group) -> Choice:
        return Choice.DROP if group.number < 4 else Choice.KEEP


@pytest.mark.slow
def test_a_step_whose_groups_are_all_dropped_changes_no_weight_and_the_run_goes_on(tmp_path: Path) -> None:
    """ReMax drops groups whose greedy session has no reward, and where no greedy turn ended a run died of it."""
    first, second = agentrl.train(
        f"{__file__}:Parity", algo=f"{__file__}:Nothing", run_dir=str(tmp_path / "run"), **SHORT
    ).metrics
    assert first["sessions/count"] == 0
    assert first["tokens/trained"] == 0
    assert second["sessions/count"] == 8


def run(tmp_path: Path, algo: str, **more: Any) -> list[dict[str, float]]:
    settings = {**SHORT, **more}
    return agentrl.train(
        f"{__file__}:Parity", algo=f"{PLUGINS}/{algo}" if ".py" in algo else algo, run_dir=str(tmp_path), **settings
    ).metrics


@pytest.mark.slow
def test_an_advantage_and_a_loss_from_files_train_together_with_two_updates_a_step(tmp_path: Path) -> None:
    own = {"algo.loss": f"{PLUGINS}/tempered.py", "algo.loss.alpha": 0.7, "algo.epochs": 2}
    rows = run(tmp_path / "run", "lite_ppo.py", **own)
    assert any(row["grad_norm"] > 0 for row in rows)


def test_the_advantage_and_the_loss_from_files_are_their_formulas() -> None:
    rewards = {"a": [1.0, 0.0, 0.0], "b": [0.5, 0.5], "c": [0.25, 1.0]}
    groups = [
        as_group([linear_session(f"{g}{i}", [8, 9], [[30, 31]], reward=r) for i, r in enumerate(each)], g)
        for g, each in rewards.items()
    ]
    settings = {"name": f"{PLUGINS}/lite_ppo.py", "loss": {"name": f"{PLUGINS}/tempered.py", "alpha": 0.5}}
    made = make_algorithm(algorithm_settings(settings))
    spread = statistics.pstdev([r for each in rewards.values() for r in each]) + 1e-4
    found = {session: share[0].advantage for (session, _), share in made.credit(groups).shares.items()}
    assert found == pytest.approx(
        {f"{g}{i}": (r - statistics.fmean(rewards[g])) / spread for g in "ac" for i, r in enumerate(rewards[g])}
    )
    logp = torch.tensor([-1.0], requires_grad=True)
    loss = made.loss(tokens(logp, one_row(2.0, old=-1.5)))
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    assert slope.item() == pytest.approx(-2.0 * math.exp(0.25))


@pytest.mark.slow
def test_an_algorithm_over_pairs_from_a_file_trains_on_the_best_and_the_worst_session_of_each_group(
    tmp_path: Path,
) -> None:
    rows = run(tmp_path / "run", "slic.py:Slic", **{"algo.epochs": 2})
    assert any(row["grad_norm"] > 0 for row in rows)
    assert any(row.get("preference/accuracy", 0) > 0 for row in rows)


@pytest.mark.slow
def test_dapo_trains_other_groups_in_place_of_those_without_signal(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", "dapo", **{"rollout.max_replaced": 9})
    assert sum(row["groups/replaced"] for row in rows) > 0
    assert all(row["groups/zero_variance"] == 0 for row in rows)
    assert all(row["groups/trained"] == 4 for row in rows)


class Evens(Grpo):
    """Keeps groups of even numbers, drops number 5, replaces the others."""

    def select(self, group: Group) -> Choice:
        if group.number == 5:
            return Choice.DROP
        return Choice.REPLACE if group.number % 2 else Choice.KEEP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "most", "kept", "gone"),
    [
        ([0, 1, 2], 9, [0, 2, 10], {"replaced": [1]}),
        ([0, 1, 3], 9, [0, 10, 12], {"replaced": [1, 3, 11]}),
        ([0, 1, 3], 2, [0, 10], {"replaced": [1, 3, 11]}),
        ([0, 5, 2], 9, [0, 2], {"dropped": [5]}),
        ([1, 3], 0, [1, 3], {}),
    ],
)
async def test_groups_are_replaced_within_a_bound_and_a_step_has_a_batch(
    first: list[int], most: int, kept: list[int], gone: dict[str, list[int]]
) -> None:
    fresh = iter(range(10, 99))
    left: dict[str, list[int]] = {}

    def group(number: int) -> Group:
        return Group(str(number), Task(id="t"), number=number)

    async def take(count: int) -> list[Group]:
        return [group(next(fresh)) for _ in range(count)]

    def drop(groups: list[Group], cause: str) -> None:
        if groups:
            left.setdefault(cause, []).extend(each.number for each in groups)

    found, counts = await select(chooser(Evens(), None), [group(n) for n in first], take, drop, most)  # type: ignore[arg-type]
    assert [each.number for each in found] == kept
    assert left == gone
    assert counts["groups/replaced"] == len(gone.get("replaced", ()))
    filtered = chooser(Evens(), lambda group: group.number != 4)  # type: ignore[arg-type]
    assert [filtered(group(number)).value for number in (2, 4, 5)] == ["keep", "replace", "drop"]

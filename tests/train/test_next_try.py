"""What a run proposes where its held-out reward did not rise."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest

from agentrl.config import EvalConfig, RolloutConfig, RunConfig
from agentrl.overrides import parse_words, validate
from agentrl.rollout.stream.batch_metrics import Evaluation, evaluate_groups
from agentrl.train.display.next_try import next_try
from agentrl.train.driver.lost_tokens import SAMPLED, Cause
from agentrl.types import Group, Session, Status, Task

SETTINGS = (30, 150, RolloutConfig().group_size)
TOPS = frozenset({1.0})


def evaluation(rewards: list[float]) -> Evaluation:
    groups = []
    for at, reward in enumerate(rewards):
        task = Task(id=str(at))
        session = Session(f"s{at}", task, "g", 0, status=Status.COMPLETED, reward=reward)
        groups.append(Group(f"g{at}", task, [session]))
    return evaluate_groups(groups, EvalConfig())


def proposal(
    before: list[float], after: list[float], mean: float, flat: float = 0.0, tops: frozenset[float] = TOPS
) -> str:
    rows = [{"step": step, "reward/mean": mean, SAMPLED: 100.0, Cause.FLAT.metric: 100 * flat} for step in range(1, 31)]
    return next_try(Path("runs/my run"), SETTINGS, evaluation(before), evaluation(after), rows, tops)


@pytest.mark.parametrize(
    ("before", "after"), [([0.0] * 20, [1.0] * 20), ([0.98] * 20, [0.97] * 20)], ids=["rose", "at its top"]
)
def test_a_run_that_rose_or_was_at_its_top_proposes_nothing(before: list[float], after: list[float]) -> None:
    assert proposal(before, after, 0.9) == ""


def test_a_difference_is_paired_by_task_and_of_the_tasks_that_both_have() -> None:
    before, after = evaluation([0.0, 1.0] * 20), evaluation([0.1, 1.1] * 19)
    change, low, high = after.change_from(before)
    assert change == pytest.approx(0.1)
    assert (low, high) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("tops", [frozenset(), frozenset({math.inf})], ids=["none", "infinite"])
def test_a_run_whose_top_is_not_known_has_a_proposal_too(tops: frozenset[float]) -> None:
    """An infinite top was near for every reward, and nothing was said."""
    assert "steps=120" in proposal([3.0] * 20, [3.0] * 20, 3.0, tops=tops)
    assert "rollout.group_size=" in proposal([3.0] * 20, [3.0] * 20, 3.0, 0.9, tops)


@pytest.mark.parametrize(
    ("mean", "flat", "setting"),
    [
        (0.02, 0.9, "warm_start.steps=600"),
        (0.5, 0.9, "rollout.group_size="),
        (0.5, 0.1, "steps=120"),
    ],
)
def test_what_is_proposed_fits_what_the_run_lacked_and_is_a_command_of_settings(
    mean: float, flat: float, setting: str
) -> None:
    held_out = [0.0, 0.1] * 20
    said, _, command = proposal(held_out, held_out, mean, flat).partition("\n")
    assert "did not rise: +0.000" in said
    words = shlex.split(command)
    assert words[:2] == ["agentrl", "train"]
    assert any(word.startswith(setting) for word in words)
    settings = [word for word in words[2:] if "=" in word and not word.startswith("resume=")]
    assert validate({"env": {"name": "calculator"}, **parse_words(settings)}, RunConfig).steps == 120

"""The main job: a tiny agent learns from rewards what its demonstrators never showed it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentrl
from agentrl.sessions.store.store import Store


def mean_reward(run: Path, step: int) -> float:
    """Of the evaluation after a step."""
    with Store(run / "sessions.db", read_only=True) as store:
        rewards = [session.reward or 0.0 for session in store.sessions(phase="eval", step=step)]
    assert len(rewards) >= 100
    return sum(rewards) / len(rewards)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_calculator_agent_rises_from_below_half_to_eight_in_ten_on_tasks_it_never_saw(learned: Path) -> None:
    """In a third of the steps that the recipe has, at a constant rate: 0.87, where 14 steps gave 0.84.

    `python -m benchmarks.learning` takes all of the recipe.
    """
    rows = [json.loads(line) for line in (learned / "metrics.jsonl").read_text().splitlines()]
    assert mean_reward(learned, 0) <= 0.5
    assert mean_reward(learned, rows[-1]["step"]) >= 0.8
    assert all(row.get("mismatch/abs_mean", 0.0) < 1e-4 for row in rows), "the engine is not the trainer"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_agent_program_is_trained_through_the_gateway_without_a_change(taught: Path, tmp_path: Path) -> None:
    agent = Path(__file__).parents[2] / "examples" / "openai_agent" / "agent.py"
    result = agentrl.train(
        "calculator",
        agent=f"{agent}:agent",
        model=str(taught),
        steps=2,
        run_dir=str(tmp_path / "run"),
        **{"rollout.groups_per_step": 8, "rollout.turn_tokens": 24, "rollout.session_tokens": 400, "eval.tasks": 8},
    )
    assert len(result.metrics) == 2
    assert all(row["status/completed"] > 0.5 for row in result.metrics)
    assert any(row.get("tokens/trained", 0) > 0 for row in result.metrics)
    assert all(row.get("mismatch/abs_mean", 0.0) < 1e-4 for row in result.metrics)

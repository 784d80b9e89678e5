"""The main job: a tiny agent learns from rewards what its demonstrators never showed it."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_calculator_agent_rises_from_below_half_to_nine_in_ten_on_tasks_it_never_saw(tmp_path: Path) -> None:
    result = agentrl.train("calculator", seed=0, run_dir=str(tmp_path / "run"))
    assert result.before is not None
    assert result.after is not None
    assert result.before.mean <= 0.5
    assert result.after.mean >= 0.9
    assert all(row.get("mismatch/abs_mean", 0.0) < 1e-4 for row in result.metrics), "the engine is not the trainer"


@pytest.mark.slow
def test_an_agent_program_is_trained_through_the_gateway_without_a_change(tmp_path: Path) -> None:
    agent = Path(__file__).parents[2] / "examples" / "openai_agent" / "agent.py"
    result = agentrl.train(
        "calculator",
        agent=f"{agent}:agent",
        steps=2,
        run_dir=str(tmp_path / "run"),
        **{"warm_start.steps": 120, "warm_start.demos": 2048, "rollout.groups_per_step": 8, "eval.tasks": 8},
    )
    assert len(result.metrics) == 2
    assert all(row["status/completed"] > 0.5 for row in result.metrics)
    assert any(row.get("tokens/trained", 0) > 0 for row in result.metrics)
    assert all(row.get("mismatch/abs_mean", 0.0) < 1e-4 for row in result.metrics)

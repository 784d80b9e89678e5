"""Agents that understand nothing get next to nothing in the built-in environments and data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs.reference import EXPERT, references
from agentrl.envs.registry import list_envs, make
from agentrl.envs.trivial import AGENTS
from tests.envs.check import worlds

TASKS = 10
ZERO_SUM = ("kuhn_poker", "liars_dice")
FIFTH = 0.2
SLACK = 0.1
"""For so few tasks: one of ten."""
READY: list[tuple[str, dict[str, Any]]] = [(env.name, {}) for env in list_envs() if env.ready]


@pytest.mark.parametrize(
    ("name", "options"),
    [*READY, *(("retail", {"level": level}) for level in (1, 2, 3))],
    ids=lambda value: value if isinstance(value, str) else "".join(map(str, value.values())),
)
@pytest.mark.slow
def test_no_trivial_agent_gets_over_a_fifth_of_a_built_in_environment_unless_a_chance_is_declared(
    name: str, options: dict[str, Any]
):
    """`retail` gave half of its first level to one sentence."""
    scores = {each.agent: each.reward or 0.0 for each in references(name, options, TASKS)}
    most, who = max((scores[agent], agent) for agent in AGENTS)
    if name in ZERO_SUM:
        assert most <= scores[EXPERT] + SLACK, who
    else:
        assert most <= max(FIFTH * scores.get(EXPERT, 1.0), make(name, **options).chance or 0.0) + SLACK, who


@pytest.mark.slow
def test_nor_of_a_data_set_of_questions(tmp_path: Path):
    file = tmp_path / "train.jsonl"
    rows = [
        {"question": f"Ann has {n} pears and buys {7 * n}. How many has she?", "answer": f"She adds.\n#### {8 * n}"}
        for n in range(11, 11 + TASKS)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for tools in (True, False):
        found = references("gsm8k", {"path": str(file), "tools": tools}, TASKS, split="train")
        assert {each.agent for each in found if (each.reward or 0.0) > FIFTH} <= {EXPERT}


@pytest.mark.slow
def test_each_of_them_gets_what_it_is_made_to_find():
    """Silence, one word, a list of all words, the tools' words, no answer, and a guess, each rewarded by itself."""
    for agent, rewarded in {
        AGENTS[0]: lambda session: session.answer == "",
        AGENTS[1]: lambda session: session.answer.isdecimal(),
        AGENTS[2]: lambda session: len(session.answer.split()) > 12,
        AGENTS[3]: lambda session: "What is" in session.answer,
        AGENTS[4]: lambda session: "think" in session.answer,
    }.items():
        reward = agentrl.reward(lambda self, session, rewarded=rewarded: float(rewarded(session)))
        world = type("World", (worlds.Quiz,), {"right": reward})
        found = {each.agent: each.reward for each in references(world, {}, TASKS)}
        assert found[agent] == 1, agent

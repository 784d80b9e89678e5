"""Agents that understand nothing get next to nothing in the built-in environments and data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs.reference import EXPERT, FEW, references
from agentrl.envs.registry import list_envs, make
from agentrl.envs.trivial import AGENTS, Known
from agentrl.types import AGENT, Message, Task
from benchmarks.trivial_sets import SETS, search_r1, written
from tests.envs.check import worlds

TASKS = 10
ZERO_SUM = ("kuhn_poker", "liars_dice")
FIFTH = 0.2
SLACK = 0.1
"""For so few tasks: one of ten."""
GUESSED = {
    "`questions`, as MMLU (4 choices)": 0.3,
    "`questions`, as BoolQ (yes or no)": 0.6,
    "`function_calls`, none helps": 1.0,
}
"""What a guess gets where answers are few, or one refusal is right everywhere."""
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


@pytest.mark.parametrize("name", [*SETS, "search_r1"])
@pytest.mark.slow
def test_nor_of_a_data_set_but_where_answers_are_few(name: str, tmp_path: Path):
    target, options = (search_r1(tmp_path), {}) if name == "search_r1" else written(name, tmp_path)
    scores = {each.agent: each.reward or 0.0 for each in references(target, options, 2 * TASKS)}
    most, who = max((scores[agent], agent) for agent in AGENTS)
    assert most <= GUESSED.get(name, FIFTH) + SLACK, who
    assert scores.get(EXPERT, 1.0) == 1


@pytest.mark.parametrize(("name", "split"), [("terminal", "eval"), ("code", "train")])
@pytest.mark.slow
def test_nor_where_programs_run(name: str, split: str):
    found = references(name, {"sandbox": "subprocess"}, 2, split, agents=FEW)
    assert {each.agent: each.reward for each in found} == {
        EXPERT: 1,
        **dict.fromkeys(FEW, 0),
    }


def test_of_answers_that_are_choices_the_constant_agent_gives_the_most_frequent_one_though_it_is_as_often_right():
    """Of yes and no in turn, the one that is more frequent elsewhere is wrong in every task."""
    known = Known()
    for n in range(12):
        known.last[str(n), AGENT] = Message(role="assistant", content="yes" if n % 2 else "no")
    given = [known.elsewhere(Task(id=str(n)), AGENT)[0].text for n in range(12)]
    assert len(set(given)) == 1


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

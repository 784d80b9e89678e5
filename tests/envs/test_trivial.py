"""Agents that understand nothing get next to nothing in the built-in environments and data sets."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.check import scores
from agentrl.envs.check.monitor import Monitor, SharedLabel
from agentrl.envs.check.reference import EXPERT, FEW, references
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.trivial import AGENTS, Known
from agentrl.envs.registry import factory, list_envs, make
from agentrl.envs.wrappers import Wrapper
from agentrl.types import AGENT, Message, Task
from benchmarks.trivial_sets import SETS, search_r1, written
from tests.envs.check import worlds

TASKS = 10
ZERO_SUM = ("kuhn_poker", "liars_dice")
FIFTH = 0.2
SLACK = 0.1
"""For so few tasks: one of ten."""
GUESSED = {
    "`questions`, as MMLU (4 choices)": 0.25,
    "`questions`, as BoolQ (yes or no)": 0.5,
    "`function_calls`, none helps": 1.0,
}
"""What a guess gets where answers are few, or one refusal is right everywhere; of other sets nobody knows it."""
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
    env = factory(target, **options)()
    chance = env.chance_of(list(islice(calls.tasks(env, "eval"), 2 * TASKS)))
    assert chance == GUESSED.get(name)
    most, who = max((scores[agent], agent) for agent in AGENTS)
    assert most <= (FIFTH + SLACK if chance is None else chance + 2 * SLACK), who
    assert scores.get(EXPERT, 1.0) == 1


def chance_of(rows: list[dict[str, Any]], folder: Path) -> float | None:
    file = folder / f"{len(list(folder.iterdir()))}.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    env = make("questions", path=str(file), eval_path=str(file))
    assert Wrapper(env).chance_of(list(env.tasks("eval"))) == env.chance_of(list(env.tasks("eval")))
    return env.chance_of(list(env.tasks("eval")))


def test_what_a_guess_gets_follows_from_the_choices_and_from_answers_that_are_few(tmp_path: Path):
    letters = [{"question": f"q{n}", "choices": list("wxyz")[: 3 + n % 2], "answer": 0} for n in range(4)]
    assert chance_of(letters, tmp_path) == pytest.approx((1 / 3 + 1 / 4) / 2)
    verdicts = [{"question": f"q{n}", "answer": "Yes." if n else "no"} for n in range(8)]
    assert chance_of(verdicts, tmp_path) == 0.5
    assert chance_of([*letters, *verdicts], tmp_path) == pytest.approx((2 * (1 / 3 + 1 / 4) + 8 * 0.5) / 12)
    aliases = [{"question": f"q{n}", "answer": ["red", "blue", "green"][n % 3 :]} for n in range(9)]
    assert chance_of(aliases, tmp_path) == pytest.approx((1 + 2 / 3 + 1 / 3) / 3)
    assert chance_of([{"question": f"q{n}", "answer": f"name {n}"} for n in range(8)], tmp_path) is None
    assert chance_of([{"question": f"q{n}", "answer": 4} for n in range(8)], tmp_path) is None


@pytest.mark.slow
async def test_a_guess_that_is_right_in_half_of_the_tasks_is_no_fault_of_a_set_of_yes_and_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name, options = written("`questions`, as BoolQ (yes or no)", tmp_path)
    subject = Subject(lambda: make(name, **options), Monitor(SharedLabel()), 0, wanted=12)
    listed = list(calls.tasks(subject.env, "eval"))
    subject.splits["eval"] = listed, listed
    await scores.play_all(subject)
    assert [found async for found in scores.compared(subject)] == []
    monkeypatch.setattr(subject.env, "chance_of", lambda tasks: None)
    fault, *_ = [found async for found in scores.compared(subject)]
    assert "half of the way to what the expert gets" in str(fault)


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

"""An environment ships answers whose credit is known; `check_env` plays them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check.rules.fixtures import problem, saying
from agentrl.envs.episode import play
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.envs.registry import factory
from agentrl.errors import EnvError
from agentrl.types import Message, Session, StepResult, Task

BUILT_IN: list[tuple[str, dict[str, Any]]] = [
    ("calculator", {}),
    ("castle", {}),
    ("castle", {"locks": 0}),
    ("data_analysis", {}),
    ("gsm8k", {}),
    ("gsm8k", {"tools": False, "reward_form": True}),
    ("math_tools", {}),
]


class Counted(Env):
    """Half a point for each of two words, less a tenth for shouting."""

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "Name two fruits."

    @agentrl.reward
    def named(self, session: Session) -> float:
        return sum(word in session.answer.casefold() for word in ("plum", "pear")) / 2

    @agentrl.reward(weight=-0.1)
    def shouted(self, session: Session) -> float:
        return float(session.answer.isupper())


class Stepped(Env):
    """A point for every turn, up to three."""

    return_range = (0.0, 3.0)
    max_turns = 3

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "Go on."

    def step(self, message: Message) -> StepResult:
        going = bool(message.text)
        return StepResult([Message(role="user", content="Go on.")], reward=float(going), terminated=not going)


def words(env: Env, said: Any, credit: FixtureCredit | float) -> str:
    fixture = Fixture({}, said, credit)
    session = asyncio.run(play(type(env)(), Task(id="one"), saying(fixture.messages)))
    return problem(fixture, session, env)


@pytest.mark.parametrize(
    ("said", "credit"),
    [
        ("plum, pear", FixtureCredit.FULL),
        ("plum", FixtureCredit.PARTIAL),
        ("PLUM, PEAR", FixtureCredit.PARTIAL),
        ("PLUM, PEAR", 0.9),
        ("APPLE", FixtureCredit.NONE),
        ("plum", 0.5),
    ],
)
def test_an_answer_with_the_right_credit_is_no_finding_and_any_other_credit_is(
    said: str, credit: FixtureCredit | float
):
    env = Counted()
    assert words(env, said, credit) == ""
    others = {FixtureCredit.FULL, FixtureCredit.PARTIAL, FixtureCredit.NONE, 0.3} - {credit}
    wrong = [
        words(env, said, other)
        for other in others
        if not (isinstance(credit, float) and other is FixtureCredit.PARTIAL)
    ]
    assert all("must get" in each for each in wrong)


def test_step_rewards_are_held_against_the_declared_range():
    env = Stepped()
    assert words(env, ["a", "b", "c"], FixtureCredit.FULL) == ""
    assert words(env, ["a"], FixtureCredit.PARTIAL) == ""
    assert words(env, [], FixtureCredit.NONE) == ""
    assert "must get full credit and got 1 (of 0 to 3)" in words(env, ["a"], FixtureCredit.FULL)


@pytest.mark.parametrize(("name", "options"), BUILT_IN, ids=str)
def test_the_fixtures_of_built_in_environments_get_their_credit(name: str, options: dict[str, Any], tmp_path: Path):
    if name == "gsm8k":
        file = tmp_path / "problems.jsonl"
        file.write_text('{"question": "Ann has 3 pens and buys 3. How many?", "answer": "3+3=6\\n#### 6"}\n')
        options = {"path": str(file), **options}
    make = factory(name, **options)
    played = list(calls.fixtures(make()))
    assert {fixture.credit for _, fixture in played} >= {FixtureCredit.FULL, FixtureCredit.NONE}
    for task, fixture in played:
        session = asyncio.run(play(make(), task, saying(fixture.messages)))
        assert problem(fixture, session, make()) == "", fixture


@pytest.mark.slow
def test_something_else_than_a_fixture_is_an_error_that_names_the_environment():
    class Wrong(Counted):
        def fixtures(self) -> Any:
            return ["plum"]

    with pytest.raises(EnvError, match=r"Wrong\.fixtures gave 'plum', which is no Fixture"):
        list(calls.fixtures(Wrong()))

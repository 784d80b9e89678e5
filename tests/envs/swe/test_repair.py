"""The tiny form: programs of a few lines, really run, mended by tools that let in an operator and a number."""

from __future__ import annotations

import asyncio
import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs import calls
from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.builtin.swe.repair import HIDDEN, VISIBLE, Repair, find_interpreter, problem, trace
from agentrl.envs.episode import DEMONSTRATOR, expert_policy, noop_policy, play
from agentrl.envs.registry import make
from agentrl.errors import ToolError
from agentrl.overrides import merge_settings
from agentrl.train.driver.setup import complete
from agentrl.types import Session, Task


def test_the_form_is_chosen_by_an_option_and_by_the_recipe_for_the_tiny_model() -> None:
    assert isinstance(make("swe", form="repair"), Repair)
    assert type(make("swe")) is Swe
    assert complete(merge_settings(["env=swe"])).env.kwargs["form"] == "repair"
    assert complete(merge_settings(["env=swe", "env.form=full"])).env.kwargs["form"] == "full"
    assert "form" not in complete(merge_settings(["env=swe", "policy=expert"])).env.kwargs
    assert "form" not in complete(merge_settings(["env=swe", "model=smollm2-135m"])).env.kwargs


@given(st.integers(0, 10_000))
def test_every_program_has_a_wrong_line_that_shows_on_the_visible_input_and_on_a_hidden_one(seed: int) -> None:
    data = problem(random.Random(seed))
    wanted, program = ([(sign, number) for sign, number in data[key]] for key in ("wanted", "program"))
    assert trace(wanted, VISIBLE) != trace(program, VISIBLE)
    assert any(trace(wanted, value)[-1] != trace(program, value)[-1] for value in HIDDEN)


def test_no_program_is_in_two_splits() -> None:
    env = Repair()
    texts = {split: {str(task.data) for task in islice(env.tasks(split), 300)} for split in ("train", "eval")}
    assert not texts["train"] & texts["eval"]


async def test_a_program_is_given_the_task_without_the_correct_lines() -> None:
    env = make("swe", form="repair")
    task = next(iter(env.tasks("train")))
    told = await calls.brief(env, task)  # type: ignore[arg-type]
    assert set(told.data) == {"words", "program"}


@pytest.mark.parametrize(
    "code", ["import os", "x = x + 7; import os", "x = 7", "x = x / 0", "y = x + 1", "x = x + 1000"]
)
def test_nothing_is_let_in_but_an_operator_and_a_number(code: str) -> None:
    env = Repair()
    env._lines = [("+", 1)]
    with pytest.raises(ToolError, match="write x = x"):
        env.replace(1, code)
    with pytest.raises(ToolError, match="lines 1 to 1"):
        env.replace(2, "x = x + 1")


@pytest.mark.usefixtures("docker")
def test_the_sandbox_comes_to_what_the_lines_say() -> None:
    lines = [("+", 3), ("*", 4), ("-", 9)]
    got = asyncio.run(find_interpreter("docker").run(lines, [0, 7, 30]))
    assert got == [trace(lines, value) for value in (0, 7, 30)]


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_the_expert_mends_every_program_and_the_careless_demonstrator_some() -> None:
    async def all_of() -> tuple[list[Session], list[Session], list[Session]]:
        tasks: list[Task] = list(islice(Repair().tasks("train"), 40))
        expert = [await play(Repair(), task, expert_policy) for task in tasks]
        careless = [await play(Repair(), task, DEMONSTRATOR) for task in tasks]
        silent = [await play(Repair(), task, noop_policy) for task in tasks[:3]]
        return expert, careless, silent

    expert, careless, silent = asyncio.run(all_of())
    assert {session.reward for session in expert} == {1.0}
    assert 0.2 < sum(session.reward or 0.0 for session in careless) / len(careless) < 0.85
    assert {session.reward for session in silent} == {0.0}

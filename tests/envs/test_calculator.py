"""The calculator world: solvable, checked, and honest about what was demonstrated."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs import calls
from agentrl.envs.builtin.calculator import (
    ADDEND,
    EVENTS,
    FACTOR,
    MAX_VALUE,
    START,
    STEP_LIMIT,
    Calculator,
    problem,
    structures,
)
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Message, Session, Task

SPLITS = ("train", "eval", "demo")
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


def drawn(split: str, count: int = 300, **options: int) -> list[Task]:
    return list(islice(Calculator(**options).tasks(split), count))


def structure(task: Task) -> str:
    return "".join(sign for sign, _ in task["steps"])


def key(task: Task) -> str:
    return json.dumps([task["start"], task["steps"]])


@pytest.mark.slow
def test_no_structure_that_is_trained_or_evaluated_was_demonstrated():
    shown = {structure(task) for task in drawn("demo", 500)}
    asked = {structure(task) for split in ("train", "eval") for task in drawn(split, 500)}
    assert not shown & asked
    for length in range(2, 5):
        halves = [structures("demo", length), structures("train", length)]
        assert {*halves[0], *halves[1]} == {
            a + b
            for a in structures("demo", 1) + structures("train", 1)
            for b in structures("demo", length - 1) + structures("train", length - 1)
        }
        assert not set(halves[0]) & set(halves[1])


def test_every_operation_is_demonstrated_at_every_place():
    for length in range(2, 5):
        for place in range(length):
            assert {signs[place] for signs in structures("demo", length)} == set(EVENTS)


@pytest.mark.slow
def test_no_problem_of_eval_is_ever_trained_whatever_the_seed():
    trained = {key(task) for seed in range(3) for task in drawn("train", 1000, seed=seed)}
    evaluated = {key(task) for seed in range(3) for task in drawn("eval", 1000, seed=seed)}
    assert not trained & evaluated
    assert len(evaluated) > 1500


@given(split=st.sampled_from(SPLITS), length=st.integers(1, STEP_LIMIT), seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_a_problem_is_what_its_numbers_say(split: str, length: int, seed: int):
    rng = random.Random(seed)
    made = problem(rng, length, split)
    amount = made["start"]
    assert START[0] <= amount <= START[1]
    for sign, number in made["steps"]:
        low, high = ADDEND if sign in "+-" else FACTOR
        assert low <= number <= high
        amount = OPERATIONS[sign](amount, number)
        assert amount == int(amount)
        assert 1 <= amount <= MAX_VALUE
    assert amount == made["answer"]
    numbers = [int(word.strip(".,")) for word in " ".join(made["story"]).split() if word.strip(".,").isdigit()]
    told = [number for number in numbers if number != 1]
    assert [n for n in (made["start"], *(n for _, n in made["steps"])) if n != 1] == told


@pytest.mark.slow
def test_lengths_are_evenly_mixed_and_seeds_differ():
    lengths = [len(task["steps"]) for task in drawn("train", 3000)]
    assert {n: round(lengths.count(n) / 3000, 1) for n in set(lengths)} == {2: 0.3, 3: 0.3, 4: 0.3}
    assert [key(t) for t in drawn("train", 5, seed=1)] != [key(t) for t in drawn("train", 5)]
    assert {len(t["steps"]) for t in drawn("train", 20, min_steps=5, max_steps=5)} == {5}


@pytest.mark.parametrize("split", SPLITS)
async def test_the_expert_solves_everything_with_one_call_a_step(split: str):
    for task in drawn(split, 20):
        session = await play(make("calculator"), task)
        assert session.rewards == {"correct": 1.0}
        assert session.turns == len(task["steps"]) + 1
        assert session.counters == {"tool_calls": len(task["steps"]), "tool_errors": 0}


@pytest.mark.slow
async def test_a_transcript_is_short():
    for task in drawn("train", 60):
        session = await play(make("calculator"), task)
        written = sum(
            len(m.text) + sum(len(c.function.arguments) - 18 for c in m.tool_calls or ()) for m in session.messages
        )
        assert written <= 250


async def begun() -> Calculator:
    env = Calculator()
    await calls.reset(env, Task(id="t", data={"story": ["Mia has 12 shells. Gain 2.", "Lose 3.", "How many now?"]}))
    return env


async def ask(expression: str) -> str:
    env = await begun()
    return (await calls.step(env, env.call("calculator", expression=expression))).messages[0].text


@pytest.mark.parametrize(
    ("expression", "result"), [("12*7", "84"), (" 7 - 12", "-5"), ("-5+ 2", "-3"), ("7/2", "3.5"), ("3.5*2", "7")]
)
async def test_the_tool_does_one_operation(expression: str, result: str):
    assert await ask(expression) == f"{result}. Lose 3."


async def test_the_conversation_continues_with_each_result_and_stops_at_its_question():
    env = await begun()
    texts = [(await calls.step(env, env.call("calculator", expression="1+1"))).messages[0].text for _ in range(3)]
    assert texts == ["2. Lose 3.", "2. How many now?", "2."]


async def test_a_refused_call_does_not_move_the_story():
    env = await begun()
    await calls.step(env, env.call("calculator", expression="1+"))
    assert (await calls.step(env, env.call("calculator", expression="1+1"))).messages[0].text == "2. Lose 3."


@pytest.mark.slow
async def test_who_imitates_the_demonstrator_perfectly_solves_about_half_and_the_slips_are_the_same_each_time():
    async def demonstrated() -> list[float | None]:
        sessions = [await play(make("calculator"), task, DEMONSTRATOR) for task in drawn("demo", 100)]
        return [session.score for session in sessions]

    scores = await demonstrated()
    assert 0.3 < sum(score or 0.0 for score in scores) / 100 < 0.6
    assert await demonstrated() == scores


@pytest.mark.parametrize("expression", ["1+2+3", "(1+2)", "2**9", "12", "", "a+b", "1//2", "1e3*2", "9" * 13 + "+1"])
async def test_the_tool_refuses_more_than_one(expression: str):
    assert await ask(expression) == "Error: give one operation (+ - * /) on two numbers, such as 12*7"


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("84", 1),
        ("The answer is 84.", 1),
        ("84.0", 1),
        ("840", 0),
        ("84 or 85", 0),
        ("-84", 0),
        ("", 0),
        ("none", 0),
        ("9" * 5000, 0),
    ],
)
async def test_the_last_number_of_the_last_message_counts(said: str, reward: float):
    task = Task(id="t", data={"story": "?", "start": 12, "steps": [["*", 7]], "answer": 84})
    session: Session = await play(Calculator(), task, lambda env, messages: Message(role="assistant", content=said))
    assert session.reward == reward


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"min_steps": 0}, {"min_steps": 4, "max_steps": 3}, {"max_steps": 9}])
def test_impossible_lengths_are_refused_by_name(options: dict[str, int]):
    with pytest.raises(ConfigError, match=r"env\.min_steps = \d and env\.max_steps = \d: allowed is 1 <= "):
        make("calculator", **options)

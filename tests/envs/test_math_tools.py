"""Mathematics with tools: answers that other arithmetic confirms, compared exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from agentrl.envs import make
from agentrl.envs.builtin.math_tools import LARGEST, LEVELS, factors, given
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.errors import ConfigError
from agentrl.types import Status


def holds(question: str, answer: Fraction) -> bool:
    """Whether an answer is right, by putting it in or by counting."""
    numbers = [int(number) for number in re.findall(r"(?<![\d^])-?\d+", question.replace("- ", "-"))]
    if found := re.match(r"What is ([(\d].*)\?", question):
        return answer == eval(found[1])
    if question.startswith("For which x"):
        a, b, c, d = numbers
        return a * answer + b == c * answer + d
    if found := re.match(r"(\d+)x \+ (\d+)y = (-?\d+) and (\d+)x \+ (\d+)y = (-?\d+)", question):
        a, b, e, c, d, f = map(int, found.groups())
        other = (e - a * answer) / b if question.endswith("x?") else (e - b * answer) / a
        x, y = (answer, other) if question.endswith("x?") else (other, answer)
        return (a * x + b * y, c * x + d * y) == (e, f)
    if found := re.search(r"of (\d+)\^(\d+) when it is divided by (\d+)", question):
        rest = 1
        for _ in range(int(found[2])):
            rest = rest * int(found[1]) % int(found[3])
        return answer == rest
    if found := re.search(r"divisors has (\d+)", question):
        n, small = int(found[1]), [k for k in range(1, int(int(found[1]) ** 0.5) + 1) if int(found[1]) % k == 0]
        return answer == len({*small, *(n // k for k in small)})
    if found := re.search(r"can (\d+) of (\d+) people", question):
        row = [1]
        for _ in range(int(found[2])):
            row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
        return answer == row[int(found[1])]
    limit, a, b = numbers[1:]
    return answer == sum(n % a == 0 or n % b == 0 for n in range(1, limit + 1))


@pytest.mark.parametrize("level", LEVELS)
def test_every_answer_is_confirmed_by_putting_it_in_or_by_counting(level: int):
    for task in islice(make("math_tools", level=level).tasks(), 40):
        assert holds(task["question"], Fraction(task["answer"])), task


@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_solves_every_level_with_calls_that_work(level: int):
    for task in islice(make("math_tools", level=level).tasks("eval"), 6):
        session = await play(make("math_tools", level=level), task)
        assert (session.reward, session.status, session.counters["tool_errors"]) == (1, Status.COMPLETED, 0), task


def test_no_problem_is_in_two_splits():
    asked = {
        split: {t["question"] for t in islice(make("math_tools").tasks(split), 150)} for split in ("train", "eval")
    }
    assert not asked["train"] & asked["eval"]


@drawn(st.integers(2, 10**6))
def test_factors_multiply_to_the_number_and_are_prime(number: int):
    found = factors(number)
    product = 1
    for prime, power in found.items():
        assert all(prime % other for other in range(2, int(prime**0.5) + 1))
        product *= prime**power
    assert product == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so\n#### 12", Fraction(12)),
        ("#### -3/7", Fraction(-3, 7)),
        ("#### 1,200.50", Fraction(2401, 2)),
        ("#### 6/14", Fraction(3, 7)),
        ("#### $5.", Fraction(5)),
        ("#### 1/0", None),
        ("#### 1e5", None),
        ("12", None),
        ("#### " + "9" * 100, None),
        ("#### 1 #### x", None),
    ],
)
def test_an_answer_is_an_exact_number_after_the_last_mark(text: str, number: Fraction | None):
    assert given(text) == number


@pytest.mark.slow
def test_the_largest_number_that_is_taken_is_factorised_and_an_unknown_level_refused():
    assert factors(LARGEST) == {2: 12, 5: 12}
    with pytest.raises(ConfigError, match=r"env\.level = 6: allowed are 1, 2, 3, 4, 5"):
        make("math_tools", level=6)


@pytest.mark.slow
def test_it_keeps_the_contract():
    assert check_env("math_tools", scored=8) == []

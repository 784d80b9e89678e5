"""`env=math_tools`: mathematics in five levels, with a calculator and a tool that factorises.

Problems are made from a seed, and every answer is an exact number. Level 1 is arithmetic with large numbers, 2 a linear
equation, 3 two of them, 4 remainders of powers and numbers of divisors, 5 counting: binomial coefficients, and
multiples by inclusion and exclusion. Answers are compared exactly, as fractions; the last line is "#### N".
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import count
from math import comb, gcd, prod

from agentrl.envs.base import Env, reward
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.calculator import calculator, evaluate
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, Task

EVAL_SHARE = 10
"""One problem in this many belongs to `eval`, by a hash of its words."""
LARGEST = 10**12
"""The largest number that `factorise` takes; a million divisions."""
MAX_ANSWER = 60
"""Characters of a number that is read."""
OPENING = "{question} Use the tools. End with a line of #### and the number, a whole one or a fraction such as 3/7."
_NUMBER = re.compile(r"-?\d+(?:\.\d+|/\d+)?")

Problem = tuple[str, list[list[str]], Fraction]
"""The words, the expert's calls (a tool and its argument), and the answer."""


class MathTools(Env):
    """Mathematics in five levels with a calculator and a tool that factorises; answers are exact.

    Args:
        level: 1 to 5; without it they are mixed.
        seed: which endless sequence of problems there is.
    """

    max_turns = 12

    def __init__(self, level: int | None = None, seed: int = 0) -> None:
        if level is not None and level not in LEVELS:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, LEVELS))}")
        self.level, self.seed = level, seed
        self._task = Task(id="")
        self.tools.add(calculator)

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """Problems without end; whether one is for `eval` is decided by its words."""
        for index in count():
            rng = random.Random(f"math_tools/{self.seed}/{split}/{self.level}/{index}")
            level = self.level or rng.choice(list(LEVELS))
            while True:
                question, calls, answer = LEVELS[level](rng)
                if is_held_out(question) == (split == "eval"):
                    break
            data = {"level": level, "question": question, "calls": calls, "answer": str(answer)}
            yield Task(id=f"math-{self.seed}-{split}-{self.level or 'all'}-{index}", data=data)

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._task = task
        return OPENING.format(question=task["question"])

    @tool
    def factorise(self, number: int) -> str:
        """A whole number's prime factors, such as 2^3 * 5.

        Args:
            number: from 2 to 1000000000000.
        """
        if not 2 <= number <= LARGEST:
            raise ToolError(f"the number must be from 2 to {LARGEST}")
        return " * ".join(f"{p}^{n}" if n > 1 else str(p) for p, n in factors(number).items())

    def state(self) -> None:
        """Nothing but the task."""

    def restore(self, task: Task, state: None) -> None:
        self._task = task

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"question": task["question"]})

    @reward
    def correct(self, session: Session) -> float:
        """1 where the number after the last #### is the answer."""
        return float(read_answer(session.answer) == Fraction(self._task["answer"]))

    def fixtures(self) -> Iterator[Fixture]:
        """The exact number behind the last #### counts, however it is written."""
        calls = [["calculator", "1/2 + 1/4"]]
        task = Task(id="quarters", data={"level": 1, "question": "What is 1/2 + 1/4?", "calls": calls, "answer": "3/4"})
        for said in ("#### 3/4", "#### 0.75", "#### 1\nNo:\n#### 6/8"):
            yield Fixture(task, said, FixtureCredit.FULL)
        for said in ("3/4", "#### 0.7500001", "#### 3/4 or so", "#### 3/0", "####", ""):
            yield Fixture(task, said, FixtureCredit.NONE)

    def expert(self, messages: Sequence[Message]) -> str | Message:
        done = sum(message.role == "tool" for message in messages)
        if done < len(self._task["calls"]):
            name, argument = self._task["calls"][done]
            if name == "factorise":
                return self.call(name, number=int(argument))
            return self.call(name, expression=argument)
        return f"#### {self._task['answer']}"


def read_answer(text: str) -> Fraction | None:
    """The exact number after the last "####"; None where there is none."""
    _, marker, after = text.rpartition("####")
    written = after.strip().strip("$.").replace(",", "").replace(" ", "")
    if not marker or len(written) > MAX_ANSWER or not _NUMBER.fullmatch(written):
        return None
    try:
        return Fraction(written)
    except ZeroDivisionError:
        return None


def factors(number: int) -> dict[int, int]:
    """The prime factors of a number with their powers, by trial division."""
    found: dict[int, int] = {}
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found[divisor] = found.get(divisor, 0) + 1
            number //= divisor
        divisor += 1 + (divisor > 2)
    return {**found, number: found.get(number, 0) + 1} if number > 1 else found


def is_held_out(question: str) -> bool:
    """Return whether a problem belongs to `eval`."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % EVAL_SHARE == 0


# ------------------------------------------------------------------------------ problems


def _arithmetic(rng: random.Random) -> Problem:
    a, b, c, d = (rng.randint(100, 9999) for _ in range(4))
    expression = rng.choice((f"{a} * {b} - {c} * {d}", f"({a} + {b}) * {c} - {d}", f"({a} - {b}) * ({c} + {d})"))
    return f"What is {expression}?", [["calculator", expression]], evaluate(expression)


def _linear(rng: random.Random) -> Problem:
    a, b, d = rng.randint(2, 60), rng.randint(-99, 99), rng.randint(-99, 99)
    c = rng.choice([number for number in range(2, 60) if number != a])
    expression = f"({d} - {b}) / ({a} - {c})"
    words = f"For which x is {a}x + {b} = {c}x + {d}?".replace("+ -", "- ")
    return words, [["calculator", expression]], evaluate(expression)


def _system(rng: random.Random) -> Problem:
    while True:
        a, b, c, d = (rng.randint(2, 20) for _ in range(4))
        determinant = a * d - b * c
        if determinant:
            break
    e, f = rng.randint(-99, 99), rng.randint(-99, 99)
    asked, top = rng.choice((("x", f"{e} * {d} - {b} * {f}"), ("y", f"{a} * {f} - {e} * {c}")))
    words = f"{a}x + {b}y = {e} and {c}x + {d}y = {f}. What is {asked}?"
    expression = f"({top}) / ({a} * {d} - {b} * {c})"
    return words, [["calculator", f"{a} * {d} - {b} * {c}"], ["calculator", expression]], evaluate(expression)


def _numbers(rng: random.Random) -> Problem:
    if rng.random() < 0.5:
        base, power, modulus = rng.randint(3, 99), rng.randint(20, 400), rng.randint(11, 997)
        words = f"What is the remainder of {base}^{power} when it is divided by {modulus}?"
        return words, _squarings(base, power, modulus), Fraction(pow(base, power, modulus))
    number = prod(rng.choice((2, 3, 5, 7, 11, 13)) for _ in range(rng.randint(5, 9)))
    powers = [power + 1 for power in factors(number).values()]
    calls = [["factorise", str(number)], ["calculator", " * ".join(map(str, powers))]]
    return f"How many positive divisors has {number}?", calls, Fraction(prod(powers))


def _squarings(base: int, power: int, modulus: int) -> list[list[str]]:
    """The calls of exponentiation by squaring, from the highest bit down."""
    calls, value = [], 1
    for bit in bin(power)[2:]:
        expression = f"{value}**2 * {base if bit == '1' else 1} % {modulus}"
        calls.append(["calculator", expression])
        value = int(evaluate(expression))
    return calls


def _counting(rng: random.Random) -> Problem:
    if rng.random() < 0.5:
        total, chosen = rng.randint(12, 40), rng.randint(3, 6)
        top = " * ".join(str(total - place) for place in range(chosen))
        bottom = " * ".join(str(place + 1) for place in range(chosen))
        words = f"In how many ways can {chosen} of {total} people be chosen?"
        return words, [["calculator", f"({top}) / ({bottom})"]], Fraction(comb(total, chosen))
    (a, b), limit = rng.sample(range(3, 31), 2), rng.randint(1000, 9999)
    common = a * b // gcd(a, b)
    expression = f"{limit} // {a} + {limit} // {b} - {limit} // {common}"
    words = f"How many of the numbers from 1 to {limit} are divisible by {a} or by {b}?"
    return words, [["factorise", str(a)], ["factorise", str(b)], ["calculator", expression]], evaluate(expression)


LEVELS: dict[int, Callable[[random.Random], Problem]] = {
    1: _arithmetic,
    2: _linear,
    3: _system,
    4: _numbers,
    5: _counting,
}
"""The functions that make the problems of each level."""

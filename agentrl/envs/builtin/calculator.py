"""Word problems of several dependent steps, small enough that a half-million-parameter model learns them.

A story says what happens to an amount; it goes on each time that something was computed:

    user       Mia has 12 shells. Multiply by 7.
    assistant  calculator("12*7")
    tool       84. Lose 15.
    assistant  calculator("84-15")
    tool       69. How many now?
    assistant  69

The calculator does one operation on two numbers at a time, so every result must be carried into the next call,
and the last one is the answer. What has to be learned is which operation an event means, which numbers it takes,
and when to stop; the arithmetic itself is the tool's.

The demonstrator (`demonstrate`) often answers before the story has ended: a perfect imitation of it solves half of the
problems, and reinforcement learning has to find the rest.

Three splits, disjoint by construction. A problem's *structure* is its sequence of operations:

- `demo` has the structures in which the amount shrinks (- or /) an even number of times;
- `train` and `eval` have those in which it shrinks an odd number of times, so no structure that is trained
  or evaluated was ever demonstrated; of one structure, whether a choice of numbers belongs to `train` or to
  `eval` is decided by a hash of the problem (1 in 10 is `eval`).
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from itertools import count, product
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.calculator import evaluate, show
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, Task

MIN_STEPS, MAX_STEPS = 2, 4
"""Calls that a problem needs, unless the options say otherwise."""
STEP_LIMIT = 6
"""The longest problems that can be asked for."""
START = (2, 30)
"""The amount at the beginning."""
ADDEND = (2, 9)
"""Numbers that are added or taken away."""
FACTOR = (2, 9)
"""Numbers that are multiplied or divided by; divisions come out even."""
MAX_VALUE = 99
"""No amount on the way is larger."""
SPARE_TURNS = 2
"""Turns beyond the calls and the answer, for correcting a mistake."""
HURRY = 3
"""The demonstrator answers too early one time in this many, so that imitating it well is not enough."""
EVAL_SHARE = 10
"""One problem in this many belongs to `eval`."""

OPENINGS = ("Mia has {n} shells.", "Tom finds {n} shells.", "A jar holds {n} shells.", "We bring {n} shells.")
EVENTS = {
    "+": ("Gain {n}.", "Find {n}.", "Add {n}."),
    "-": ("Lose {n}.", "Sell {n}.", "Give away {n}."),
    "*": ("Multiply by {n}.", "Grow by a factor of {n}.", "Make it times {n}."),
    "/": ("Divide by {n}.", "Keep one part of {n}.", "Share among {n}."),
}
QUESTION = "How many now?"
SHRINKING = frozenset("-/")

_CALL = re.compile(r"\s*-?\d{1,12}(\.\d{1,12})?\s*[-+*/]\s*-?\d{1,12}(\.\d{1,12})?\s*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Calculator(Env):
    """Word problems of two to four dependent steps, each one calculator call.

    Args:
        min_steps: calls that the shortest problems need.
        max_steps: calls that the longest problems need.
        seed: which endless sequence of problems `tasks` gives.
    """

    splits = ("train", "eval", "demo")
    quick = True

    def __init__(self, min_steps: int = MIN_STEPS, max_steps: int = MAX_STEPS, seed: int = 0) -> None:
        if not 1 <= min_steps <= max_steps <= STEP_LIMIT:
            allowed = f"1 <= env.min_steps <= env.max_steps <= {STEP_LIMIT}"
            raise ConfigError(f"env.min_steps = {min_steps} and env.max_steps = {max_steps}: allowed is {allowed}")
        self.min_steps, self.max_steps, self.seed = min_steps, max_steps, seed
        self.max_turns = max_steps + 1 + SPARE_TURNS
        self._task, self._results = Task(id=""), 0

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings with which the tiny model is trained in about two minutes."""
        if model != "tiny":
            return {}
        return {
            "steps": 60,
            "warm_start.steps": 180,
            "warm_start.batch": 64,
            "warm_start.demos": 4096,
            "warm_start.lr": 4e-3,
            "warm_start.normalize": "rollout",  # premature answers are short, and weigh more
            "algo.lr": 5e-4,
            "algo.minibatches": 1,
            "algo.schedule": "linear",
            "algo.warmup_steps": 0,
            "algo.kl_coef": 0.0,
            "rollout.turn_tokens": 24,
            "rollout.session_tokens": 400,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        for index in count():
            rng = random.Random(f"calculator/{self.seed}/{split}/{index}")
            length = rng.randint(self.min_steps, self.max_steps)
            data = problem(rng, length, split)
            yield Task(id=f"{split}-{self.seed}-{index}", data=data)

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._task, self._results = task, 0
        return str(task["story"][0])

    @tool(quick=True)
    def calculator(self, expression: str) -> str:
        """One operation on two numbers; then the story goes on.

        Args:
            expression: such as 12*7
        """
        if not _CALL.fullmatch(expression):
            raise ToolError("give one operation (+ - * /) on two numbers, such as 12*7")
        value = show(evaluate(expression))
        self._results += 1
        return " ".join([f"{value}.", *self._task["story"][self._results :][:1]])

    def state(self) -> dict[str, Any]:
        return {"results": self._results}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self._task, self._results = task, state["results"]

    @reward
    def correct(self, session: Session) -> float:
        """1 where the last number of the last message is the answer."""
        numbers = _NUMBER.findall(session.answer)
        return float(bool(numbers) and float(numbers[-1]) == self._task["answer"])

    def expert(self, messages: Sequence[Message]) -> str | Message:
        results = [message.text.split(". ")[0] for message in messages if message.role == "tool"]
        amount = results[-1] if results else str(self._task["start"])
        steps = self._task["steps"]
        if len(results) >= len(steps):
            return amount
        sign, number = steps[len(results)]
        return self.call("calculator", expression=f"{amount}{sign}{number}")

    def fixtures(self) -> Iterator[Fixture]:
        story = ["A jar holds 12 shells. Multiply by 7.", "Lose 15.", QUESTION]
        task = Task(id="shells", data={"story": story, "start": 12, "steps": [["*", 7], ["-", 15]], "answer": 69})
        yield Fixture(task, "69", FixtureCredit.FULL)
        yield Fixture(task, "There are 69.0 shells.", FixtureCredit.FULL, "the answer in a sentence")
        yield Fixture(task, "69, or 70", FixtureCredit.NONE, "two answers")
        yield Fixture(
            task, [self.call("calculator", expression="12*7"), "84"], FixtureCredit.NONE, "answered too early"
        )
        yield Fixture(task, "", FixtureCredit.NONE, "silence")

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str | Message:
        """The expert, which one time in `HURRY` answers before the story ends; of a problem always at one place."""
        done = sum(message.role == "tool" for message in messages)
        hurried = random.Random(f"hurry/{self._task.id}/{done}").randrange(HURRY) == 0
        if hurried and done > 0:
            return messages[-1].text.split(". ")[0]
        return self.expert(messages)


@functools.cache
def structures(split: str, length: int) -> list[str]:
    """The sequences of operations that a split's problems of this length have, such as "*-/"."""
    odd = split != "demo"
    return ["".join(signs) for signs in product(EVENTS, repeat=length) if sum(s in SHRINKING for s in signs) % 2 == odd]


def problem(rng: random.Random, length: int, split: str) -> dict[str, Any]:
    """A structure, numbers and words, sampled until the numbers fit the structure and belong to the split."""
    choices = structures(split, length)
    while True:
        start = rng.randint(*START)
        steps, value = _fill(rng, rng.choice(choices), start)
        if steps is not None and (split == "demo" or split_of(start, steps) == split):
            break
    events = [rng.choice(EVENTS[sign]).format(n=number) for sign, number in steps]
    story = [f"{rng.choice(OPENINGS).format(n=start)} {events[0]}", *events[1:], QUESTION]
    return {"story": story, "start": start, "steps": steps, "answer": value}


def split_of(start: int, steps: Sequence[Sequence[Any]]) -> str:
    """Return whether these numbers are for `train` or for `eval` (of a structure that is not for `demo`)."""
    text = f"{start}" + "".join(f"{sign}{number}" for sign, number in steps)
    bucket = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % EVAL_SHARE
    return "eval" if bucket == 0 else "train"


def _fill(rng: random.Random, structure: str, value: int) -> tuple[list[list[Any]] | None, int]:
    """Numbers for each operation, and the final amount; (None, 0) where no number fits."""
    steps: list[list[Any]] = []
    for sign in structure:
        low, high = ADDEND if sign in "+-" else FACTOR
        after = {"+": value.__add__, "-": value.__sub__, "*": value.__mul__, "/": value.__floordiv__}[sign]
        fits = [n for n in range(low, high + 1) if 1 <= after(n) <= MAX_VALUE and (sign != "/" or value % n == 0)]
        if not fits:
            return None, 0
        number = rng.choice(fits)
        steps.append([sign, number])
        value = after(number)
    return steps, value

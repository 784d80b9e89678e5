"""`env=data_analysis`: questions about a shop's database and files, answered with SQL and a file reader.

A database of a seed has customers, products and sales; what came back is in `returns.csv`, which is no table of it.
Level 1 asks about one table, level 2 needs joins and groups, level 3 combines the file with the database. The answer is
a number (to a cent) or a name, on the last line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.data_analysis.questions import LEVELS, PAGE, question
from agentrl.envs.builtin.data_analysis.shop import DATABASES, FILE, SCHEMA, ShopDatabase, shop_of
from agentrl.envs.builtin.data_analysis.sql import run_query
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.calculator import calculator
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, Task

EVAL_EVERY = 5
"""One database in this many is for `eval`."""
CENT = 0.0101
"""The largest distance of a number from the answer that is right."""
HURRY = 2
"""One demonstration in this many guesses, so that a policy which imitates them has something left to learn."""
MAX_ANSWER = 200
"""Characters of an answer that is read as a number."""
OPENING = (
    "Answer the question about the shop's data. The database has the tables that `schema` shows; the file "
    f"{FILE} lists sales that came back, and is not in the database. Write the answer alone on the last line, "
    "after 'Answer:'.\n\n{question}"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class DataAnalysis(Env):
    """Questions about a shop's data, answered with SQL on a read-only database and a CSV file.

    Args:
        level: of the questions, 1 to 3; without it they are mixed.
        seed: which databases there are.
    """

    max_turns = 20

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings with which the tiny model learns level 1; larger steps destroy the queries that it copies."""
        if model != "tiny":
            return {}
        return {
            "steps": 30,
            "warm_start.steps": 240,
            "warm_start.lr": 4e-3,
            "algo.lr": 2e-4,
            "algo.minibatches": 1,
        }

    def __init__(self, level: int | None = None, seed: int = 0) -> None:
        if level is not None and level not in LEVELS:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, LEVELS))}")
        self.level, self.seed = level, seed
        self._task = Task(id="")
        self.tools.add(calculator)

    def tasks(self, split: str = "train") -> Iterator[Task]:
        mine = [number for number in range(DATABASES) if (number % EVAL_EVERY == 0) == (split == "eval")]
        for index in count():
            rng = random.Random(f"data_analysis/{self.seed}/{split}/{self.level}/{index}")
            number, level = rng.choice(mine), self.level or rng.choice(LEVELS)
            data = question(rng, level, shop_of(self.seed, number))
            name = f"data-{self.seed}-{split}-{self.level or 'all'}-{index}"
            yield Task(id=name, data={"database": number, "level": level, **data})

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._task = task
        return OPENING.format(question=task["question"])

    @tool(quick=True)
    def schema(self) -> str:
        """The tables of the database, and the files."""
        return f"{SCHEMA}\n\nFile {FILE}: {len(self._shop.lines)} lines, the first is {self._shop.lines[0]}"

    @tool
    def sql(self, query: str) -> str:
        """Run one SELECT in SQLite on the database, which can't be changed.

        Args:
            query: such as SELECT count(*) FROM sales.
        """
        return run_query(self._shop.database, query)

    @tool(quick=True)
    def read_file(self, start: int = 1) -> str:
        """Lines of the CSV file.

        Args:
            start: the first line to read, from 1.
        """
        lines = self._shop.lines
        if not 1 <= start <= len(lines):
            raise ToolError(f"start = {start}: {FILE} has the lines 1 to {len(lines)}")
        shown = lines[start - 1 : start - 1 + PAGE]
        rest = len(lines) - (start - 1) - len(shown)
        return "\n".join(shown) + (f"\n({rest} more lines; read on at start={start + PAGE})" if rest else "")

    @property
    def _shop(self) -> ShopDatabase:
        return shop_of(self.seed, self._task["database"])

    def state(self) -> None:
        """Nothing but the task."""

    def restore(self, task: Task, state: None) -> None:
        self._task = task

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"question": task["question"], "database": task["database"]})

    @reward
    def correct(self, session: Session) -> float:
        """1 where the last line is the answer."""
        return float(same(session.answer, self._task["answer"]))

    def fixtures(self) -> Iterator[Fixture]:
        """Numbers count within a cent, names in any case, both in the last line."""
        first = next(iter(self.tasks()))
        number = Task(id="number", data={**first.data, "answer": "1234.50"})
        name = Task(id="name", data={**first.data, "answer": "North"})
        for task, said in ((number, "Answer: 1234.5"), (number, "So:\nAnswer: $1,234.50."), (name, "Answer: north")):
            yield Fixture(task, said, FixtureCredit.FULL)
        for task, said in ((number, "Answer: 1234.52"), (number, "1234.50\nThat is all."), (name, "North or South")):
            yield Fixture(task, said, FixtureCredit.NONE)
        yield Fixture(number, "", FixtureCredit.NONE, "silence")

    def expert(self, messages: Sequence[Message]) -> str | Message:
        done = sum(message.role == "tool" for message in messages)
        calls = self._task["calls"]
        if done < len(calls):
            return self.call(calls[done][0], **calls[done][1])
        return f"Answer: {self._task['answer']}"

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str | Message:
        """The expert, which in one task of `HURRY` guesses instead of asking the database; always in the same ones."""
        chance = random.Random(f"hurry/{self._task.id}")
        if messages[-1].role == "tool" and chance.randrange(HURRY) == 0:
            return f"Answer: {chance.randint(1, 99)}"
        return self.expert(messages)


def same(said: str, answer: str) -> bool:
    """Return whether the last line of a message, after "Answer:", is right: a number to a cent, or the same name."""
    lines = said.strip().splitlines()
    given, answer = bare(lines[-1].rpartition("Answer:")[2] if lines else ""), bare(answer)
    if _NUMBER.fullmatch(answer):
        plain = given.replace(",", "")
        return bool(_NUMBER.fullmatch(plain)) and len(plain) < MAX_ANSWER and abs(float(plain) - float(answer)) < CENT
    return bool(given) and given.casefold() == answer.casefold()


def bare(answer: str) -> str:
    """An answer without the marks around it."""
    return answer.strip(" .$*`'\"")

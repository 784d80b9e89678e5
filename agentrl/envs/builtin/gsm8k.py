"""GSM8K: grade-school word problems with worked answers (Cobbe et al., 2021, arXiv:2110.14168).

The problems come from a JSONL file with the fields `question` and `answer`, in the data set's own form: the
answer's last line is "#### N", and its arithmetic is annotated as <<48/2=24>>. Without a file they are downloaded
once from the Hugging Face hub. An answer that is no number by the rule of `questions` (a date, a fraction, a name with
a number in it) is refused: of its numbers one would be taken. The expert makes the annotated calculations with the tool
and then returns the worked answer, so demonstrations need no other model.

A small model solves few of these, rarely ends an answer in the required form, and is often truncated at the token
limit: with the final number alone nearly all groups have zero reward and nothing is learned for a long time. Three
options help, and the recipe of `smollm2-135m` sets them: worked examples in the prompt (`shots`), no tool whose use
would have to be learned first (`tools=false`), and a small reward, logged by itself, for an answer that ends in that
form (`reward_form`).

One file has both splits, by the rule of `splits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.questions import latex
from agentrl.envs.data.hub import HUB, dataset_file
from agentrl.envs.data.rows import read_tasks, require_file
from agentrl.envs.data.splits import divide
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.calculator import calculator, evaluate
from agentrl.types import Message, Session, Task

INSTRUCTIONS = "Solve the problem step by step. Use the calculator. End with #### and the number."
WITHOUT_TOOLS = "Solve the problem step by step. End with #### and the number."
SHOTS = (
    (
        "A box holds 6 pens. Ben buys 3 boxes and gives 4 pens away. How many pens has he left?",
        "Ben buys 6*3=18 pens.\nHe has 18-4=14 pens left.\n#### 14",
    ),
    (
        "Lea walks 5 km each day from Monday to Friday, and 8 km on Saturday. How far does she walk in all?",
        "From Monday to Friday she walks 5*5=25 km.\nIn all she walks 25+8=33 km.\n#### 33",
    ),
)
"""Worked examples in the data set's form; they are not in it."""
FORM_WEIGHT = 0.1
"""Weight of the reward for an answer in the required form."""
REPO = "openai/gsm8k"
FILES = {"train": "main/train-00000-of-00001.parquet", "eval": "main/test-00000-of-00001.parquet"}

_ANNOTATION = re.compile(r"<<([^<>=]*)=[^<>]*>>")
_FORM = re.compile(r"####\s*\$?-?(?:[\d,]*\.\d+|[\d,]*\d)\s*")
_NUMBER = re.compile(r"-?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
MAX_NUMBER_CHARS = 40


class GSM8K(Env):
    """Grade-school maths problems with a calculator, checked by the final number.

    Args:
        path: a JSONL file with `question` and `answer`; without one the hub's data set is fetched.
        eval_path: another such file for the split `eval`; without one a tenth of `path` is held out.
        instructions: the system message; without one the built-in one.
        tools: whether there is a calculator.
        shots: how many worked examples stand before the question (at most 2, and only without tools).
        reward_form: whether an answer that ends in #### and a number is rewarded for that, right or wrong.
        endpoint: the hub's address.
    """

    max_turns = 16

    needs = "a file, or the Hugging Face hub"

    def __init__(
        self,
        path: str | Path | None = None,
        eval_path: str | Path | None = None,
        instructions: str | None = None,
        tools: bool = True,
        shots: int = 0,
        reward_form: bool = False,
        endpoint: str = HUB,
    ) -> None:
        for key, value in (("path", path), ("eval_path", eval_path)):
            if value is not None:
                require_file(f"env.{key}", value)
        if eval_path is not None and path is None:
            raise ConfigError(f"env.eval_path = {str(eval_path)!r} without env.path: give both, or neither")
        if not 0 <= shots <= len(SHOTS):
            raise ConfigError(f"env.shots = {shots}: allowed is 0 to {len(SHOTS)}")
        if shots and tools:
            raise ConfigError(f"env.shots = {shots} needs env.tools=false: the examples do without the calculator")
        ours = INSTRUCTIONS if tools else WITHOUT_TOOLS
        self.instructions = ours if instructions is None else instructions
        self.path, self.eval_path, self.endpoint = path, eval_path, endpoint
        self.shots, self.reward_form = shots, reward_form
        self._task = Task(id="")
        if tools:
            self.tools.add(calculator)

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings for a small real model on a CPU, about a minute a step; on a GPU use larger sizes."""
        if model != "smollm2-135m":
            return {}
        return {
            "env.tools": False,
            "env.shots": 2,
            "env.reward_form": True,
            "steps": 10,
            "algo.lr": 5e-5,
            "rollout.groups_per_step": 2,
            "rollout.group_size": 4,
            "rollout.turn_tokens": 160,
            "rollout.session_tokens": 1024,
            "rollout.turn_timeout": 600,
            "rollout.timeout": 1800,
            "engine.max_batch": 8,
            "eval.tasks": 8,
        }

    def tasks(self, split: str = "train") -> list[Task]:
        if self.path is None:
            file = dataset_file(REPO, FILES[split], endpoint=self.endpoint)
            return read_tasks(file, _task, "problems")
        chosen = Path(self.eval_path if split == "eval" and self.eval_path else self.path).expanduser()
        problems = read_tasks(chosen, _task, "problems")
        if self.eval_path:
            return problems
        return divide(problems, split, lambda task: str(task["question"]), f"env.path = {str(self.path)!r}")

    def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        self._task = task
        opening = [Message(role="system", content=self.instructions)] if self.instructions else []
        for question, answer in SHOTS[: self.shots]:
            opening += [Message(role="user", content=question), Message(role="assistant", content=answer)]
        return [*opening, Message(role="user", content=task["question"])]

    def state(self) -> None:
        """Nothing but the task: the calculator has no state."""

    def restore(self, task: Task, state: None) -> None:
        self._task = task

    @reward
    def correct(self, session: Session) -> float:
        """1 where the final number equals the worked answer's."""
        said, wanted = final_number(session.answer), final_number(self._task["answer"])
        return float(said is not None and said == wanted)

    @reward(weight=FORM_WEIGHT)
    def form(self, session: Session) -> float | None:
        """1 where the answer ends with one #### and a number; None where that is not rewarded."""
        before, marker, after = session.answer.partition("####")
        return float(bool(before.strip()) and bool(_FORM.fullmatch(marker + after))) if self.reward_form else None

    def fixtures(self) -> Iterator[Fixture]:
        """The final number counts; with `reward_form`, its form is worth a little by itself."""
        data = {"question": "Ann has 1000 pens and buys 200. How many?", "answer": "1000+200=1200\n#### 1,200"}
        task = Task(id="pens", data=data)
        yield Fixture(task, "1000+200=1200\n#### 1200", FixtureCredit.FULL)
        yield Fixture(task, "1000+200=1200\n#### $1,200.00", FixtureCredit.FULL)
        form = FixtureCredit.PARTIAL if self.reward_form else FixtureCredit.NONE
        yield Fixture(task, "1000+20=1020\n#### 1020", form, "a wrong number in the right form")
        yield Fixture(task, "There is no answer.", FixtureCredit.NONE)

    def expert(self, messages: Sequence[Message]) -> str | Message:
        """The annotated calculations, one call each, then the worked answer without its annotations."""
        if not len(self.tools):
            return _ANNOTATION.sub("", str(self._task["answer"]))
        done = sum(message.role == "tool" for message in messages)
        worked = str(self._task["answer"])
        wanted = calculations(worked)[: self.max_turns - 1]
        if done >= len(wanted):
            return _ANNOTATION.sub("", worked)
        return self.call("calculator", expression=wanted[done])


def calculations(worked: str) -> list[str]:
    """The annotated expressions of a worked answer that the calculator can evaluate."""
    found = []
    for match in _ANNOTATION.finditer(worked):
        expression = match[1].strip()
        try:
            evaluate(expression)
        except ToolError:
            continue
        found.append(expression)
    return found


def final_number(text: str) -> Fraction | None:
    """The number after the last "####", or else the last number; None where there is none."""
    _, marker, after = text.rpartition("####")
    numbers = _NUMBER.findall(after if marker else text)
    if not numbers:
        return None
    chosen = numbers[0 if marker else -1].replace(",", "")
    return Fraction(chosen) if len(chosen) <= MAX_NUMBER_CHARS else None


def _task(row: Mapping[str, Any], number: int) -> Task:
    question, answer = row["question"], row["answer"]
    if not isinstance(question, str) or not isinstance(answer, str):
        raise ValueError("question and answer must be text")
    stated = answer.rpartition("####")[2].strip()
    if (value := latex.number(latex.normalize(stated))) is None or value != final_number(stated):
        raise ValueError(
            f"the answer must hold a number, behind #### or by itself, and nothing else there, not {stated[:60]!r}; "
            "env=questions compares other answers, as words or as mathematics"
        )
    return Task(id=f"gsm8k-{number}", data={"question": question, "answer": answer})

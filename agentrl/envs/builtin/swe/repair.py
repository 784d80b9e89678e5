"""`env.form=repair`: repairs of single lines, small enough that a half-million-parameter model learns them.

Each line of a program is to do what is written before it, and one or two of them don't:

    user       1 plus 7: x = x + 7
               2 times 2: x = x * 3
               3 take 3: x = x + 3
    assistant  test()
    tool       line 2: 39, not 26
    assistant  replace(line=2, code="x = x * 2")
    tool       ok
    assistant  test()
    tool       line 3: 29, not 23
    assistant  replace(line=3, code="x = x - 3")
    tool       ok
    assistant  test()
    tool       passed
    assistant  done

The programs run in a sandbox, and hidden inputs score them. What has to be learned is to test before changing anything,
to read which line is wrong, to write the code that the words before it describe, and not to stop before the tests pass.
The demonstrator (`demonstrate`) often changes a line without testing, or ends without testing again. One sandbox serves
all episodes of the process: nothing of the model's output is run in it but an operator and a number.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from agentrl.common.retries import retry
from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.swe.workspace import SPEC
from agentrl.envs.sandboxes import Supplier, supplier
from agentrl.errors import SandboxError, ToolError
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.runner.interpreter import InteractiveSandbox, Interpreter
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, Task

TINY_RECIPE = {
    "env.form": "repair",
    "steps": 60,
    "warm_start.steps": 200,
    "warm_start.demos": 2048,
    "warm_start.lr": 4e-3,
    "warm_start.normalize": "rollout",
    "algo.lr": 5e-4,
    "algo.minibatches": 1,
    "algo.schedule": "linear",
    "algo.warmup_steps": 0,
    "algo.kl_coef": 0.0,
    "rollout.groups_per_step": 8,
    "rollout.turn_tokens": 32,
    "rollout.session_tokens": 600,
}
"""Settings with which the tiny model is trained in a few minutes."""
LINES = (2, 3)
"""Lines of a program."""
BUGS = 2
"""Wrong lines at most."""
NUMBERS = range(2, 10)
CARELESS = 2
"""The demonstrator ends without testing again one time in this many, so that imitation alone is not enough."""
GUESSING = 5
"""And changes a line without having tested one time in this many."""
EVAL_SHARE = 10
SPARE_TURNS = 3
"""Turns beyond those that the repair takes, for correcting a mistake."""
VISIBLE, HIDDEN = 5, (0, 1, 2, 7, 11, 30)
"""The input that `test` runs, and those that score."""
SECONDS = 10.0
TRIES = 3
"""Attempts at a run, each in another sandbox."""
WORDS = {"+": ("plus {n}", "add {n}"), "-": ("take {n}", "minus {n}"), "*": ("times {n}", "multiply by {n}")}

_LINE = re.compile(r"\s*x\s*=\s*x\s*([-+*])\s*(\d{1,3})\s*")

Line = tuple[str, int]
"""An operator and a number."""


class Repair(Env):
    """Repair programs of a few lines with two tools: `test` and `replace`. See this module's docstring.

    Args:
        form: "repair".
        sandbox: docker, or subprocess, which isolates nothing.
        steps: answers that the agent may give.
    """

    splits = ("train", "eval", "demo")

    def __init__(self, form: str = "repair", sandbox: str = "docker", steps: int = 0) -> None:
        self.backend = sandbox
        self.max_turns = steps or 2 * BUGS + 2 + SPARE_TURNS
        self._task, self._lines = Task(id=""), list[Line]()

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        return TINY_RECIPE if model == "tiny" else {}

    def tasks(self, split: str = "train") -> Iterator[Task]:
        for index in count():
            rng = random.Random(f"repair/{split}/{index}")
            data = problem(rng)
            while (split == "eval") != _is_held_out(data):
                data = problem(rng)
            yield Task(id=f"{split}-{index}", data=data)

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        await self._supplier.check(SPEC)

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        self._task = task
        self._lines = [(sign, number) for sign, number in task["program"]]
        await self._supplier.check(SPEC)
        lines = zip(task["words"], self._lines, strict=True)
        listing = [f"{place} {words}: {_code(line)}" for place, (words, line) in enumerate(lines, 1)]
        return [Message(role="user", content="\n".join(listing))]

    def brief(self, task: Task) -> Task:
        """The program and what it should do, without the correct lines."""
        return Task(id=task.id, data={"words": task["words"], "program": task["program"]})

    @tool
    async def test(self) -> str:
        """Run the program and say which line is the first to go wrong."""
        (got,) = await find_interpreter(self.backend).run(self._lines, [VISIBLE])
        for place, (value, wanted) in enumerate(zip(got, trace(_list_wanted(self._task), VISIBLE), strict=True), 1):
            if value != wanted:
                return f"line {place}: {value}, not {wanted}"
        return "passed"

    @tool(quick=True)
    def replace(self, line: int, code: str) -> str:
        """Put another line in a line's place.

        Args:
            line: its number.
            code: such as x = x + 7
        """
        found = _LINE.fullmatch(code)
        if found is None:
            raise ToolError("write x = x, an operator (+ - *) and a number, such as x = x + 7")
        if not 1 <= line <= len(self._lines):
            raise ToolError(f"there are lines 1 to {len(self._lines)}")
        self._lines[line - 1] = found[1], int(found[2])
        return "ok"

    def state(self) -> list[Line]:
        return self._lines

    def restore(self, task: Task, state: Sequence[Sequence[Any]]) -> None:
        self._task, self._lines = task, [(sign, number) for sign, number in state]

    @reward
    async def solved(self, session: Session) -> float:
        """1 where the program does what it should on all hidden inputs."""
        wanted = [trace(_list_wanted(self._task), value)[-1] for value in HIDDEN]
        if self._lines == [(sign, number) for sign, number in self._task["program"]]:
            return 0.0
        got = await find_interpreter(self.backend).run(self._lines, HIDDEN)
        return float([values[-1] for values in got] == wanted)

    def expert(self, messages: Sequence[Message]) -> Message:
        """Tests, replaces the line that the test names, and ends when it passes."""
        last = messages[-1]
        if last.role != "tool" or last.text == "ok":
            return self.call("test")
        if last.text == "passed":
            return Message(role="assistant", content="done")
        place = int(last.text.removeprefix("line ").partition(":")[0])
        return self._replace(place)

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> Message:
        """The expert with mistakes, of a task always the same ones: see `CARELESS` and `GUESSING`."""
        said = sum(message.role == "assistant" for message in messages)
        rng = random.Random(f"careless/{self._task.id}/{said}")
        if said == 0 and rng.randrange(GUESSING) == 0:
            return self._replace(rng.randint(1, len(self._lines)))
        if messages[-1].text == "ok" and rng.randrange(CARELESS) == 0:
            return Message(role="assistant", content="done")
        return self.expert(messages)

    def _replace(self, place: int) -> Message:
        return self.call("replace", line=place, code=_code(_list_wanted(self._task)[place - 1]))

    @property
    def _supplier(self) -> Supplier:
        return supplier(self.backend)


# ---------------------------------------------------------------------------------------------- programs


def problem(rng: random.Random) -> dict[str, Any]:
    """Words for each line, the lines that they ask for, and a program in which some of them are wrong."""
    wanted: list[Line] = [(rng.choice("+-*"), rng.choice(NUMBERS)) for _ in range(rng.randint(*LINES))]
    program = list(wanted)
    for place in rng.sample(range(len(wanted)), rng.randint(1, min(BUGS, len(wanted)))):
        sign, number = wanted[place]
        if rng.random() < 0.5:
            program[place] = rng.choice([other for other in "+-*" if other != sign]), number
        else:
            program[place] = sign, rng.choice([other for other in NUMBERS if other != number])
    if any(a != b and trace([a], VISIBLE) == trace([b], VISIBLE) for a, b in zip(wanted, program, strict=True)):
        return problem(rng)
    if _hides(wanted, program):
        return problem(rng)
    words = [rng.choice(WORDS[sign]).format(n=number) for sign, number in wanted]
    return {"words": words, "wanted": [list(line) for line in wanted], "program": [list(line) for line in program]}


def trace(lines: Sequence[Line], value: int) -> list[int]:
    """The values of x after each line, as computed here."""
    values = []
    for sign, number in lines:
        value = value + number if sign == "+" else value - number if sign == "-" else value * number
        values.append(value)
    return values


def _hides(wanted: Sequence[Line], program: Sequence[Line]) -> bool:
    """Return whether a wrong line has the right value while those before it are right."""
    for place, line in enumerate(program):
        if line != wanted[place]:
            repaired = [*wanted[:place], line]
            if trace(repaired, VISIBLE)[-1] == trace(wanted[: place + 1], VISIBLE)[-1]:
                return True
    return trace(program, HIDDEN[-1])[-1] == trace(wanted, HIDDEN[-1])[-1]


def _list_wanted(task: Task) -> list[Line]:
    return [(sign, number) for sign, number in task["wanted"]]


def _code(line: Line) -> str:
    return f"x = x {line[0]} {line[1]}"


def _is_held_out(data: dict[str, Any]) -> bool:
    text = f"{data['wanted']}{data['program']}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % EVAL_SHARE == 0


# ----------------------------------------------------------------------------------------- where they run


class SharedInterpreter:
    """One interpreter in one sandbox, for all episodes of the process; replaced where it is lost."""

    def __init__(self, backend: str) -> None:
        self._supplier = supplier(backend)
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._interpreter: Interpreter | None = None

    async def run(self, lines: Sequence[Line], inputs: Sequence[int]) -> list[list[int]]:
        """The values of x after each line, for each input.

        Raises:
            SandboxError: the sandbox failed.
        """
        body = "".join(f"    {_code(line)}\n    seen.append(x)\n" for line in lines)
        code = f"def f(x):\n    seen = []\n{body}    return seen\nprint([f(x) for x in {list(inputs)}])\n"
        return await retry(lambda: on_loop(self._run(code)), SandboxError, [0.0] * (TRIES - 1))

    async def _run(self, code: str) -> list[list[int]]:
        async with self._lock:
            try:
                if self._interpreter is None:
                    sandbox, _ = await self._supplier.acquire(SPEC)
                    if not isinstance(sandbox, InteractiveSandbox):
                        raise SandboxError("env.form=repair needs a sandbox with a resident runner")
                    await sandbox.exec(["mkdir", "-p", sandbox.workdir], cwd="/")
                    self._sandbox, self._interpreter = sandbox, Interpreter(sandbox)
                done = await self._interpreter.run(code, timeout=SECONDS)
                found: list[list[int]] = ast.literal_eval(done.stdout.decode())
            except (SandboxError, ValueError, SyntaxError) as error:
                self._interpreter = None
                if self._sandbox is not None:
                    await self._supplier.release(self._sandbox)
                    self._sandbox = None
                raise error if isinstance(error, SandboxError) else SandboxError(f"no answer: {error}") from None
            return found


_interpreters: dict[int, SharedInterpreter] = {}


def find_interpreter(backend: str) -> SharedInterpreter:
    """The process's interpreter of a backend; a new one where its supplier was closed meanwhile."""
    key = id(supplier(backend))
    if key not in _interpreters:
        _interpreters[key] = SharedInterpreter(backend)
    return _interpreters[key]

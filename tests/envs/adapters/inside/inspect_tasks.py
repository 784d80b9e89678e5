"""Tasks of inspect_ai: one turn, tools, several turns and scorers, and some that can't be played."""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, GenerateConfig, ModelAPI, ModelOutput, modelapi
from inspect_ai.scorer import Score, Scorer, Target, accuracy, includes, match, model_graded_qa, scorer
from inspect_ai.solver import (
    Generate,
    Solver,
    TaskState,
    generate,
    self_critique,
    solver,
    system_message,
    use_tools,
)
from inspect_ai.tool import Tool, tool
from inspect_ai.util import sandbox, sandboxenv
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment


def samples(count: int = 50) -> list[Sample]:
    numbers = [(n % 7, n % 5) for n in range(count)]
    return [Sample(id=n, input=f"What is {a} + {b}?", target=str(a + b)) for n, (a, b) in enumerate(numbers)]


@task
def single(prompt: str = "Answer with a number.") -> Task:
    return Task(dataset=samples(), solver=[system_message(prompt), generate()], scorer=match(location="exact"))


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        return a + b

    return execute


@task
def tools() -> Task:
    return Task(dataset=samples(), solver=[use_tools(add()), generate()], scorer=includes())


@solver
def again() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        for _ in range(2):
            state.messages.append(ChatMessageUser(content="Are you sure?"))
            state = await generate(state)
        return state

    return solve


@scorer(metrics=[accuracy()])
def lengths() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value={"messages": len(state.messages), "characters": len(state.output.completion)})

    return score


@task
def several() -> Task:
    return Task(dataset=samples(), solver=[generate(), again()], scorer=[includes(), lengths()])


@scorer(metrics=[accuracy()])
def leaves_out() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float("nan"))

    return score


@scorer(metrics=[accuracy()])
def says_nothing() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score | None:
        return None

    return score


@task
def undecided() -> Task:
    return Task(dataset=samples(3), solver=generate(), scorer=[leaves_out(), says_nothing()])


@task
def reacting() -> Task:
    """The first agent of the library's own pages."""
    return Task(dataset=samples(12), solver=react(tools=[add()], attempts=2), scorer=includes())


@task
def limited() -> Task:
    return Task(dataset=samples(12), solver=[generate(), again()], scorer=[includes(), lengths()], message_limit=4)


@task
def critical() -> Task:
    return Task(dataset=samples(12), solver=[generate(), self_critique()], scorer=match(location="exact"))


@task
def graded() -> Task:
    return Task(dataset=samples(12), solver=generate(), scorer=[model_graded_qa(), includes()])


@modelapi(name="strict")
class Strict(ModelAPI):
    """A grader that finds everything right."""

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig) -> ModelOutput:
        return ModelOutput.from_content(self.model_name, "GRADE: C")


@solver
def fails() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await generate(state)
        raise RuntimeError("the solver is broken")

    return solve


@task
def broken() -> Task:
    return Task(dataset=samples(3), solver=fails(), scorer=includes())


@solver
def forgets() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        state.messages = [ChatMessageUser(content="Once more: what is it?")]
        return await generate(state)

    return solve


@task
def forgetful() -> Task:
    return Task(dataset=samples(3), solver=forgets(), scorer=includes())


@tool
def shell() -> Tool:
    async def execute(command: str) -> str:
        """Run a command.

        Args:
            command: the command.
        """
        done = await sandbox().exec(["sh", "-c", command])
        return done.stdout

    return execute


@scorer(metrics=[accuracy()])
def written() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        done = await sandbox().exec(["cat", "sum.txt"])
        return Score(value=float(done.stdout.strip() == target.text))

    return score


@task
def sandboxed() -> Task:
    return Task(dataset=samples(3), solver=[use_tools(shell()), generate()], scorer=written(), sandbox="local")


@sandboxenv(name="absent")
class Absent(LocalSandboxEnvironment):
    """A sandbox whose engine is not there."""

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        raise RuntimeError("there is no engine")


@task
def elsewhere() -> Task:
    return Task(dataset=samples(3), solver=generate(), scorer=includes(), sandbox="absent")


@task
def spending(limit: int = 100) -> Task:
    return Task(dataset=samples(3), solver=[generate(), again()], scorer=includes(), token_limit=limit)


@task
def unscored() -> Task:
    return Task(dataset=samples(3), solver=generate())


def plain() -> Any:
    return None

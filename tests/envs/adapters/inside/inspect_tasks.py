"""Tasks of inspect_ai: one turn, tools, several turns and scorers, and some that can't be played."""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, accuracy, includes, match, scorer
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, system_message, use_tools
from inspect_ai.tool import Tool, tool


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


@task
def sandboxed() -> Task:
    return Task(dataset=samples(3), solver=generate(), scorer=includes(), sandbox="local")


@task
def unscored() -> Task:
    return Task(dataset=samples(3), solver=generate())


def plain() -> Any:
    return None

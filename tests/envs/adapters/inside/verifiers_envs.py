"""Environments made with verifiers: one turn, a tool, several turns, and some that can't be played."""

from __future__ import annotations

import random
from typing import Any

import verifiers as vf
from datasets import Dataset


def rows(count: int = 60) -> Dataset:
    numbers = [(n % 7, n % 5) for n in range(count)]
    return Dataset.from_list([{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in numbers])


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"].strip() == answer)


async def short(completion: Any) -> float:
    return 1.0 / (1 + len(completion[-1]["content"]))


def single(weight: float = 0.5) -> vf.Environment:
    rubric = vf.Rubric(funcs=[right, short], weights=[1.0, weight])
    return vf.SingleTurnEnv(dataset=rows(), eval_dataset=rows(10), system_prompt="Answer with a number.", rubric=rubric)


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one.
        b: the other.
    """
    return a + b


def tools() -> vf.Environment:
    return vf.ToolEnv(dataset=rows(), tools=[add], max_turns=4, rubric=vf.Rubric(funcs=[right]))


class Guess(vf.MultiTurnEnv):
    """Guess a number between 0 and 10 that the answer seeds, told whether it is higher or lower."""

    async def setup_state(self, state: vf.State) -> None:
        state["number"] = random.Random(state["answer"]).randrange(10)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        said = messages[-1].content or ""
        if said == str(state["number"]):
            state["final_env_response"] = [{"role": "user", "content": "Yes."}]
            return state["final_env_response"]
        higher = said.isdigit() and int(said) < state["number"]
        return [{"role": "user", "content": "Higher." if higher else "Lower."}]


def found(state: vf.State) -> float:
    return float(state.get("final_env_response") is not None)


def guess() -> vf.Environment:
    return Guess(dataset=rows(), max_turns=5, rubric=vf.Rubric(funcs=[found]))


class Forgetful(Guess):
    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        """Leave all but the first message out."""
        await super().get_prompt_messages(state)
        return state["prompt"]


def forgetful() -> vf.Environment:
    return Forgetful(dataset=rows(), max_turns=5, rubric=vf.Rubric(funcs=[found]))


class Broken(Guess):
    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        raise vf.SandboxError("the sandbox is gone")


def broken() -> vf.Environment:
    return Broken(dataset=rows(), max_turns=5, rubric=vf.Rubric(funcs=[found]))


def grouped() -> vf.Environment:
    def best(states: list[vf.State]) -> list[float]:
        return [0.0 for _ in states]

    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[best]))

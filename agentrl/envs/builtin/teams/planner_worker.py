"""`env=planner_worker`: the problems of `calculator` for two: a planner reads the story, a worker computes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.calculator import EVENTS, HURRY, STEP_LIMIT, Calculator
from agentrl.envs.fixtures import Fixture
from agentrl.types import Message, Session, StepResult, Task

TOLD = "Compute what you are told."
SLIPS = 4
"""The demonstrator's worker takes another operation one time in this many."""
MORE_STEPS = 2
"""Results that demonstrated problems may need beyond `max_steps`."""


class PlannerWorker(Calculator):
    """A planner says what to compute, and the answer; a worker computes it, and sees nothing of the story.

    Args:
        min_steps: results that the shortest problems need.
        max_steps: results that the longest problems need.
        seed: which endless sequence of problems `tasks` gives.
    """

    agents = ("planner", "worker")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("planner", "worker")}
    optimum = 1.0

    def __init__(self, min_steps: int = 1, max_steps: int = 2, seed: int = 0) -> None:
        super().__init__(min_steps, max_steps, seed)
        self.max_turns = 2 * (max_steps + MORE_STEPS + 1)
        self.said = ""

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Those of `calculator`, with longer sessions, and lower rates for two policies that learn from one reward."""
        if model != "tiny":
            return {}
        own = {"steps": 120, "warm_start.steps": 240, "warm_start.batch": 32, "warm_start.lr": 3e-3, "algo.lr": 3e-4}
        return {**super().recipe(model), **own, "rollout.session_tokens": 600}

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """Problems of `calculator`; those of `demo` may be longer.

        In the short ones of `demo` an amount of one digit is only ever made smaller. A planner that has imitated no
        others repeats the digit before a plus, in all sessions of a group alike, and no reward teaches it otherwise.
        """
        if split != "demo":
            return super().tasks(split)
        return Calculator(self.min_steps, min(self.max_steps + MORE_STEPS, STEP_LIMIT), self.seed).tasks(split)

    def reset(self, task: Task, *, seed: int | None = None) -> Mapping[str, str]:  # type: ignore[override]
        self.said = ""
        return {"planner": super().reset(task, seed=seed), "worker": TOLD}

    async def step(self, message: Message) -> StepResult:
        """Pass what is to be computed to the worker, and its result to the planner; a number is the answer."""
        if message.name == "planner":
            self.said = "" if message.tool_calls else message.text.strip()
            if not any(sign in self.said[1:] for sign in EVENTS):
                return StepResult(terminated=True)
            return StepResult(others={"worker": [Message(role="user", content=self.said)]}, next="worker")
        before = self._results
        ran = await self.run_tools(message)
        if not ran.messages:
            return StepResult(terminated=True)
        if self._results == before:  # no operation: the worker is told why
            return StepResult(ran.messages, next="worker")
        told = ran.messages[-1].text
        own = [each.model_copy(update={"content": each.text.split(". ")[0]}) for each in ran.messages]
        return StepResult(own, others={"planner": [Message(role="user", content=told)]}, next="planner")

    @reward
    def correct(self, session: Session) -> Mapping[str, float]:  # type: ignore[override]
        """1 for both where the planner's last message is the answer."""
        try:
            return {"pair": float(float(self.said.rstrip(".")) == self._task["answer"])}
        except ValueError:
            return {"pair": 0.0}

    def expert(self, messages: Sequence[Message]) -> str | Message:
        if messages[0].text == TOLD:
            asked = next(message.text for message in reversed(messages) if message.role == "user")
            return self.call("calculator", expression=asked)
        heard = [message.text for message in messages if message.role == "user"][1:]
        amount = heard[-1].split(". ")[0] if heard else str(self._task["start"])
        steps = self._task["steps"]
        if len(heard) >= len(steps):
            return amount
        sign, number = steps[len(heard)]
        return f"{amount}{sign}{number}"

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str | Message:
        """The expert; but the planner sometimes answers too early, and the worker takes another operation."""
        if messages[0].text == TOLD:
            asked = next(message.text for message in reversed(messages) if message.role == "user")
            if rng.randrange(SLIPS) == 0:
                asked = "".join(rng.choice("+-") if each in EVENTS else each for each in asked)
            return self.call("calculator", expression=asked)
        heard = [message.text for message in messages if message.role == "user"][1:]
        if heard and rng.randrange(HURRY) == 0:
            return heard[-1].split(". ")[0]
        return self.expert(messages)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "said": self.said}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        super().restore(task, state)
        self.said = state["said"]

    def fixtures(self) -> Iterator[Fixture]:
        return iter(())

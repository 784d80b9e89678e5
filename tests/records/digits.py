"""The environment of the recorded runs: what a model with random weights answers earns points by chance."""

from __future__ import annotations

import os
from typing import Any

import agentrl
from agentrl.types import Message, Session, StepResult, Task

TASKS = 12


class Digits(agentrl.Env):
    """Two turns; the points follow from the answers' tokens. `DIGITS_DIE_AT=N` ends the process at the Nth turn."""

    max_turns = 2
    stop_strings = tuple(chr(code) for code in range(32, 127))
    steps = 0
    turns = 0

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        """Twelve of each split."""
        return [{"id": f"{split}-{number}", "start": number} for number in range(TASKS)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """The number of the task."""
        self.turns = 0
        return f"{task['start']}?"

    def step(self, message: Message) -> StepResult:
        """The same question after each turn."""
        Digits.steps += 1
        if str(Digits.steps) == os.environ.get("DIGITS_DIE_AT"):
            os._exit(9)
        self.turns += 1
        return StepResult([Message(role="user", content="and?")], terminated=self.turns == 2)

    def state(self) -> int:
        """How many turns there were."""
        return self.turns

    def restore(self, task: Task, state: int) -> None:
        """Continue after so many turns."""
        self.turns = state

    @agentrl.reward
    def points(self, session: Session) -> float:
        """Eighths, by chance."""
        return sum(sum(node.token_ids) for node in session.nodes if node.sampled) % 8 / 8


agentrl.register("digits", Digits)

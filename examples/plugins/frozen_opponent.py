"""A game of two agents, one of which a frozen policy may play.

Both name a digit without seeing the other's; the higher one wins. Where the policy that is trained plays both agents,
this is self-play; where a frozen one plays the second, the first learns to beat it:

    agentrl train env=examples/plugins/frozen_opponent.py:HigherDigit model=runs/NAME/checkpoints/step-000001 \
        agents.second=rival policies.rival.model=start
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import agentrl
from agentrl import Message, StepResult, Task
from agentrl.plugins.environment import Session


class HigherDigit(agentrl.Env):
    """Two agents name a digit each; the higher one wins."""

    agents = ("first", "second")

    def __init__(self) -> None:
        self.digits: dict[str, int] = {}

    def tasks(self, split: str = "train") -> Iterable[Mapping[str, Any]]:
        """Rounds, which differ in nothing but their number; each split has numbers of its own."""
        first = 64 if split == "eval" else 0
        return [{"round": number} for number in range(first, first + 64)]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        """Both agents get the same words."""
        self.random = random.Random(f"{seed} {task['round']}")
        return dict.fromkeys(self.agents, "Name a digit.")

    def step(self, message: Message) -> StepResult:
        """Note the digit (-1 for anything else); nobody hears of it before both have named theirs."""
        text = message.text.strip()
        assert message.name is not None
        self.digits[message.name] = int(text) if text in tuple("0123456789") else -1
        return StepResult(terminated=len(self.digits) == 2)

    def demonstrate(self, messages: Sequence[Message]) -> str:
        """A legal digit, whichever it is."""
        return str(self.random.randint(0, 9))

    @agentrl.reward
    def won(self, session: Session) -> dict[str, float]:
        """1 for the higher digit, 0 for the lower one, 0.5 for equal ones; an agent without a turn named none."""
        first, second = (self.digits.get(agent, -1) for agent in self.agents)
        half = 0.5 * (1 + (first > second) - (first < second))
        return {"first": half, "second": 1 - half}

"""Two agents divide ten coins: each demands some of them at once, and gets its demand where the two fit.

Demands that are more than ten together leave both with nothing (Nash's demand game). The demonstrator asks for any
number, so both begin with little; they learn to ask for what the other one leaves:

    agentrl train -c examples/several_agents/demand.yaml
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import agentrl
from agentrl import Message, StepResult, Task
from agentrl.plugins.environment import Session

COINS = 10


class Demand(agentrl.Env):
    """Left and right demand coins; neither sees the other's demand."""

    agents = ("left", "right")
    simultaneous = True
    max_turns = 2

    def tasks(self, split: str = "train") -> Iterable[Mapping[str, Any]]:
        """Rounds, which differ in nothing but their number; each split has numbers of its own."""
        first = 64 if split == "eval" else 0
        return [{"round": number} for number in range(first, first + 64)]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        """Ask both the same."""
        self.chance = random.Random(f"{seed} {task['round']}")
        self.demands: dict[str, int] = {}
        return {agent: f"You are {agent}. Demand 0 to {COINS} coins." for agent in self.agents}

    def step(self, message: Message) -> StepResult:
        """Note the demand."""
        assert message.name is not None
        said = message.text.strip()
        if said in map(str, range(COINS + 1)):
            self.demands[message.name] = int(said)
        return StepResult(terminated=message.name == "right")

    def demonstrate(self, messages: Sequence[Message]) -> str:
        """Any demand."""
        return str(self.chance.randint(0, COINS))

    @agentrl.reward
    def coins(self, session: Session) -> dict[str, float]:
        """The share of the coins that each gets; no number is no demand."""
        fit = sum(self.demands.values()) <= COINS
        return {agent: self.demands.get(agent, 0) / COINS if fit else 0.0 for agent in self.agents}

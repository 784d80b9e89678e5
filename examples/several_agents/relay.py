"""A team of two that must share what one of them knows.

The scout sees which room has the treasure and says one word to the runner, who sees nothing else and names a room. The
reward is the team's: neither is right alone. At first the scout mostly says any word, and the runner often does not
listen:

    agentrl train -c examples/several_agents/relay.yaml
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import agentrl
from agentrl import Message, StepResult, Task
from agentrl.plugins.environment import Session

ROOMS = ("red", "blue", "green", "gold", "grey", "pink")
TELLS, LISTENS = 0.4, 0.6
"""How often the demonstrator's scout tells the room, and its runner repeats what it hears."""


class Relay(agentrl.Env):
    """A scout tells a runner in one word where to go."""

    agents = ("scout", "runner")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("scout", "runner")}
    max_turns = 2

    def tasks(self, split: str = "train") -> Iterable[Mapping[str, Any]]:
        """Rooms; the splits differ in the way to them, which says nothing of the room."""
        ways = range(0, 8) if split == "eval" else range(8, 64)
        return [{"id": f"{way}-{room}", "way": way, "room": room} for way in ways for room in ROOMS]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        """Tell the scout the room, and the runner nothing of it."""
        self.chance = random.Random(f"{seed} {task.id}")
        self.room, self.heard, self.named = task["room"], "", ""
        return {
            "scout": f"Way {task['way']} leads to the {self.room} room. Say one word.",
            "runner": "Which room has the treasure?",
        }

    def step(self, message: Message) -> StepResult:
        """Pass the scout's first word on; the runner's is the answer."""
        word = (message.text.split() or ["nothing"])[0][:12]
        if message.name == "runner":
            self.named = word
            return StepResult(terminated=True)
        self.heard = word
        return StepResult(others={"runner": [Message(role="user", content=f"The scout says {word}")]})

    def demonstrate(self, messages: Sequence[Message]) -> str:
        """A room: sometimes the one that is known or was heard, else any."""
        known, chance = (self.heard, LISTENS) if self.heard else (self.room, TELLS)
        return known if self.chance.random() < chance else self.chance.choice(ROOMS)

    @agentrl.reward
    def found(self, session: Session) -> dict[str, float]:
        """1 for the team where the runner names the room."""
        return {"pair": float(self.named == self.room)}

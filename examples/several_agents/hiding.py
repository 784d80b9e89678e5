"""An adversarial pair against its earlier versions: a hider and a seeker, who choose one of three places each.

Whoever always chooses the same place loses to an opponent that has noticed, so both must stay unpredictable: each place
a third of the time. The demonstrator's hider is mostly in the attic. The seeker is played by earlier versions of the
policy in half of the groups, and by the policy itself in the others; an entropy bonus keeps all places in use:

    agentrl train -c examples/several_agents/hiding.yaml
    agentrl ratings runs/NAME
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import agentrl
from agentrl import Message, StepResult, Task
from agentrl.plugins.environment import Session

PLACES = ("attic", "cellar", "garden")
HABIT = (0.8, 0.1, 0.1)
"""Where the demonstrator's hider hides."""


class Hiding(agentrl.Env):
    """One agent hides, the other one seeks; neither sees the other's choice."""

    agents = ("hider", "seeker")
    simultaneous = True
    max_turns = 2

    def tasks(self, split: str = "train") -> Iterable[Mapping[str, Any]]:
        """Rounds, which differ in nothing but their number; each split has numbers of its own."""
        first = 64 if split == "eval" else 0
        return [{"round": number} for number in range(first, first + 64)]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        """Ask both the same."""
        self.chance = random.Random(f"{seed} {task['round']}")
        self.places: dict[str, str] = {}
        return {"hider": f"Hide: {', '.join(PLACES)}.", "seeker": f"Seek: {', '.join(PLACES)}."}

    def step(self, message: Message) -> StepResult:
        """Note the choice."""
        assert message.name is not None
        self.places[message.name] = message.text.strip()
        return StepResult(terminated=len(self.places) == len(self.agents))

    def demonstrate(self, messages: Sequence[Message]) -> str:
        """A place: the hider's by habit, the seeker's any."""
        return self.chance.choices(PLACES, HABIT if messages[0].text.startswith("Hide") else None)[0]

    @agentrl.reward
    def won(self, session: Session) -> dict[str, float]:
        """1 for the seeker where it looked in the right place, else for the hider; no place at all loses."""
        hidden, sought = (self.places.get(agent, "") for agent in self.agents)
        found = hidden not in PLACES or hidden == sought
        return {"hider": float(not found), "seeker": float(found and sought in PLACES)}

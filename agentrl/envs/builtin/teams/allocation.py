"""`env=allocation`: workers go to sites one after another, and as many are wanted at each site as is said.

Each sees what is wanted and who is where already; so a team of any size can be right, and one who goes where nobody is
wanted costs it a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.base import ChoiceWorld
from agentrl.errors import ConfigError
from agentrl.types import Message, Session

SITES = ("mine", "mill", "dock")
MOST = 50


class Allocation(ChoiceWorld):
    """Workers, of which each site wants some.

    Args:
        workers: how many, 2 to 50.
    """

    name = "allocation"
    simultaneous = False
    chance = 0.85

    def __init__(self, workers: int = 2) -> None:
        if not 2 <= workers <= MOST:
            raise ConfigError(f"env.workers = {workers}: allowed are 2 to {MOST}")
        self.agents = tuple(f"worker_{number}" for number in range(1, workers + 1))
        self.teams: Mapping[str, tuple[str, ...]] = {"crew": self.agents}
        self._situations = [
            {"wanted": [first, second, workers - first - second]}
            for first, second in product(range(workers + 1), repeat=2)
            if first + second <= workers
        ]
        super().__init__()

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return self._situations

    def opening(self, agent: str) -> str:
        return f"You are {agent}."

    def options(self, agent: str) -> Sequence[str]:
        return SITES

    def open_places(self) -> list[int]:
        """Return how many are still wanted at each site; below 0 where there are too many."""
        gone = [site for each in self.said.values() for site in each]
        return [wanted - gone.count(site) for site, wanted in zip(SITES, self.situation["wanted"], strict=True)]

    def news(self, agent: str) -> str:
        return "Wanted: " + ", ".join(
            f"{site} {left}" for site, left in zip(SITES, self.open_places(), strict=True) if left > 0
        )

    def reset(self, task: Any, *, seed: int | None = None) -> Mapping[str, str]:
        """Tell each worker its number, and the first what is wanted."""
        openings = dict(super().reset(task, seed=seed))
        first = self.agents[0]
        return {**openings, first: f"{openings[first]} {self.news(first)}"}

    def seen(self, agent: str) -> tuple[str, ...]:
        """The first worker's opening says what is wanted; the others are told later."""
        return (f"{self.opening(agent)} {self.news(agent)}",) if agent == self.agents[0] else super().seen(agent)

    def agent_of(self, messages: Sequence[Message]) -> str:
        return messages[0].text.split(".")[0].removeprefix("You are ")

    def payoffs(self) -> Mapping[str, float]:
        empty = sum(max(left, 0) for left in self.open_places())
        return {"crew": 1 - empty / len(self.agents)}

    @reward
    def filled(self, session: Session) -> Mapping[str, float]:
        """The share of the places that are filled, for all."""
        return self.payoffs()

    def expert(self, messages: Sequence[Message]) -> str:
        return next((site for site, left in zip(SITES, self.open_places(), strict=True) if left > 0), SITES[0])

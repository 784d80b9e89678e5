"""`env=allocation`: workers go to sites one after another, and as many are wanted at each site as is said.

Each sees what is wanted and who is where already; so a team of any size can be right, and one who goes where nobody is
wanted costs it a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.critics import CRITICS, AdvisedWorld, Plan
from agentrl.errors import ConfigError
from agentrl.types import Message, Session

SITES = ("mine", "mill", "dock")
MOST = 50


class Allocation(AdvisedWorld):
    """Workers, of which each site wants some.

    Args:
        workers: how many, 2 to 50.
        critics: whether `explorer`, `exploiter` and `assessor` speak before the workers.
    """

    name = "allocation"
    simultaneous = False
    chance = 0.85
    chance_with_critics = 0.88

    def __init__(self, workers: int = 2, critics: bool = False) -> None:
        if not 2 <= workers <= MOST:
            raise ConfigError(f"env.workers = {workers}: allowed are 2 to {MOST}")
        self._situations = [
            {"wanted": [first, second, workers - first - second]}
            for first, second in product(range(workers + 1), repeat=2)
            if first + second <= workers
        ]
        super().__init__([f"worker_{number}" for number in range(1, workers + 1)], critics)

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return self._situations

    def opening(self, agent: str) -> str:
        return super().opening(agent) if agent in CRITICS else f"You are {agent}."

    def options(self, agent: str) -> Sequence[str]:
        return super().options(agent) if agent in CRITICS else SITES

    def open_places(self) -> list[int]:
        """Return how many are still wanted at each site; below 0 where there are too many."""
        gone = [site for worker in self.actors for site in self.said[worker]]
        return [wanted - gone.count(site) for site, wanted in zip(SITES, self.situation["wanted"], strict=True)]

    def overview(self) -> str:
        return "Wanted: " + ", ".join(
            f"{site} {left}" for site, left in zip(SITES, self.open_places(), strict=True) if left > 0
        )

    def news(self, agent: str) -> str:
        if agent in CRITICS:
            return super().news(agent)
        return ". ".join(filter(None, (self.overview(), self.advice(agent))))

    def agent_of(self, messages: Sequence[Message]) -> str:
        return messages[0].text.split(".")[0].removeprefix("You are ")

    def payoffs(self) -> Mapping[str, float]:
        empty = sum(max(left, 0) for left in self.open_places())
        return {"crew": 1 - empty / len(self.actors)}

    @reward
    def filled(self, session: Session) -> Mapping[str, float]:
        """The share of the places that are filled, for all."""
        return self.payoffs()

    def best_plan(self) -> Plan:
        """Those who have not gone yet go where somebody is still wanted."""
        left = [site for site, places in zip(SITES, self.open_places(), strict=True) for _ in range(places)]
        waiting = [worker for worker in self.actors if not self.said[worker]]
        return {**dict.fromkeys(self.actors, SITES[0]), **dict(zip(waiting, left, strict=False))}

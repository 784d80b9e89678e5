"""`env=debate`: three debaters add up, hear each other's answers, and answer again; the majority's answer counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.base import ILLEGAL, ChoiceWorld
from agentrl.errors import ConfigError
from agentrl.types import Message, Session

KNOWS = 0.4
"""The probability that the demonstrator knows the sum in the first round."""
HIGHEST = 9


class Debate(ChoiceWorld):
    """Sums of two digits; a debater is paid for its own last answer and for the majority's.

    Args:
        highest: the highest digit, 1 to 9.
    """

    name = "debate"
    agents = ("ann", "bob", "cid")
    rounds = 2
    chance = 0.6

    def __init__(self, highest: int = 4) -> None:
        if not 1 <= highest <= HIGHEST:
            raise ConfigError(f"env.highest = {highest}: allowed are 1 to {HIGHEST}")
        self.highest = highest
        super().__init__()

    def situations(self) -> Sequence[Mapping[str, Any]]:
        every = range(self.highest + 1)
        return [{"digits": [one, other]} for one in every for other in every]

    def opening(self, agent: str) -> str:
        return f"{agent}: {' + '.join(map(str, self.situation['digits']))}?"

    def options(self, agent: str) -> Sequence[str]:
        return [str(number) for number in range(2 * self.highest + 1)]

    def news(self, agent: str) -> str:
        return ", ".join(f"{each} says {own[-1] or 'nothing'}" for each, own in self.said.items() if each != agent)

    def agent_of(self, messages: Sequence[Message]) -> str:
        return messages[0].text.split(":")[0]

    def majority(self) -> str:
        """The last answer of two or more; `ILLEGAL` where there is none."""
        answer, votes = Counter(own[-1] for own in self.said.values() if own).most_common(1)[0]
        return answer if votes > len(self.agents) // 2 else ILLEGAL

    def payoffs(self) -> Mapping[str, float]:
        right = str(sum(self.situation["digits"]))
        team = float(self.majority() == right)
        return {agent: (team + float(own[-1] == right)) / 2 for agent, own in self.said.items()}

    @reward
    def paid(self, session: Session) -> Mapping[str, float]:
        """Half for the majority's answer, half for one's own."""
        return self.payoffs() if self._over() else dict.fromkeys(self.agents, 0.0)

    @reward(weight=0)
    def majority_right(self, session: Session) -> float:
        """1 where the majority is right."""
        return float(self._over() and self.majority() == str(sum(self.situation["digits"])))

    @reward(weight=0)
    def one_right(self, session: Session) -> float:
        """The share of the debaters whose first answer, before they heard of each other, is right."""
        right = str(sum(self.situation["digits"]))
        return fmean(float(bool(own) and own[0] == right) for own in self.said.values())

    def _over(self) -> bool:
        return all(len(own) == self.rounds for own in self.said.values())

    def expert(self, messages: Sequence[Message]) -> str:
        return str(sum(self.situation["digits"]))

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """At first often a guess; then what the other two say where they agree, else its own again."""
        agent = self.agent_of(messages)
        if not self.said[agent]:
            return self.expert(messages) if rng.random() < KNOWS else rng.choice(self.options(agent))
        heard = [own[0] for each, own in self.said.items() if each != agent]
        return heard[0] if heard[0] == heard[1] != ILLEGAL else self.said[agent][0] or self.options(agent)[0]

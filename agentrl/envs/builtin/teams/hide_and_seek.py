"""`env=hide_and_seek`: a hider and a seeker choose a place at once; a seeker who is right wins what the place is worth.

A zero-sum game whose equilibrium is known: both choose a place as often as its worth is small, p ∝ 1/worth, and the
seeker gets 1 / Σ 1/worth (von Neumann, 1953).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.base import ChoiceWorld
from agentrl.types import Message, Session

WORTH: Mapping[str, float] = {"attic": 1.0, "cellar": 0.5, "garden": 0.5}
_SUM = sum(1 / worth for worth in WORTH.values())
EQUILIBRIUM: Mapping[str, float] = {place: 1 / worth / _SUM for place, worth in WORTH.items()}
"""The probability with which both choose each place at equilibrium."""


class HideAndSeek(ChoiceWorld):
    """A game in which the predictable one loses; the hider gets what the seeker does not."""

    name = "hide_and_seek"
    agents = ("hider", "seeker")
    optimum = 1 - 1 / _SUM
    chance = 0.5

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return [{}]

    def opening(self, agent: str) -> str:
        places = ", ".join(f"{place} {worth}" for place, worth in WORTH.items())
        return f"{'Hide' if agent == 'hider' else 'Seek'}: {places}."

    def options(self, agent: str) -> Sequence[str]:
        return tuple(WORTH)

    def payoffs(self) -> Mapping[str, float]:
        """The place's worth for the seeker who is right; a hider without a place is found in the dearest."""
        hidden, sought = (self.said[agent][0] for agent in self.agents)
        lost = WORTH[hidden] if hidden == sought and hidden in WORTH else 0.0
        if hidden not in WORTH:
            lost = max(WORTH.values())
        return {"hider": 1 - lost, "seeker": lost}

    @reward
    def won(self, session: Session) -> Mapping[str, float]:
        """Return what each wins; the two are 1."""
        return self.payoffs() if all(self.said.values()) else dict.fromkeys(self.agents, 0.0)

    def expert(self, messages: Sequence[Message]) -> str:
        """A place by the equilibrium's chances; the hider's luck is not the seeker's."""
        luck = self.luck if self.agent_of(messages) == "hider" else self.luck * 997 % 1
        return next(place for place, upto in zip(WORTH, accumulate(EQUILIBRIUM.values()), strict=True) if luck <= upto)

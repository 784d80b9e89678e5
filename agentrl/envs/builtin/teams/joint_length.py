"""`env=joint_length`: two agents write at once, and one text must be as many times as long as the other as is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.base import ILLEGAL, MAX_TEXT, ChoiceWorld
from agentrl.types import Message, Session

WORD = "la"
LONGEST = 8
RATIOS = (1, 2, 3)


class JointLength(ChoiceWorld):
    """A short and a long text, of 1 to 8 words each; which lengths fit is between the two who write them."""

    name = "joint_length"
    agents = ("short", "long")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("short", "long")}
    chance = 0.8

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return [{"ratio": ratio} for ratio in RATIOS]

    def opening(self, agent: str) -> str:
        return f"Write the {agent} text. Ratio {self.situation['ratio']}."

    def options(self, agent: str) -> Sequence[str]:
        """Texts of each length; whatever the words are, their number counts."""
        return [" ".join([WORD] * length) for length in range(1, LONGEST + 1)]

    def read(self, agent: str, text: str) -> str:
        length = len(text[:MAX_TEXT].split())
        return " ".join([WORD] * length) if 1 <= length <= LONGEST else ILLEGAL

    def payoffs(self) -> Mapping[str, float]:
        """1 where the lengths stand in the ratio; less by the relative difference."""
        short, long = (len(self.said[agent][0].split()) for agent in self.agents)
        if not short or not long:
            return {"pair": 0.0}
        wanted = short * self.situation["ratio"]
        return {"pair": max(0.0, 1 - abs(long - wanted) / wanted)}

    @reward
    def fits(self, session: Session) -> Mapping[str, float]:
        """Return how well the lengths fit, for both."""
        return self.payoffs() if all(self.said.values()) else {"pair": 0.0}

    def expert(self, messages: Sequence[Message]) -> str:
        short = self.agent_of(messages) == "short"
        return " ".join([WORD] * (2 if short else 2 * self.situation["ratio"]))

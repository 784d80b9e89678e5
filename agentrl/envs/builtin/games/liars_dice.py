"""Liar's dice: each agent sees its own dice, and bids on those of all.

A bid says that among all dice at least so many show a face ("3 fives"); each must be higher than the last one, in
number or, at the same number, in face. Instead of bidding, an agent may say "liar": then the dice are shown, and the
bidder wins if the bid holds, else the challenger. The expert bids what is likeliest to hold given its own dice, and
challenges where the bid is less likely than what it could bid itself.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import product
from math import comb
from typing import Any

from agentrl.envs.builtin.games.base import Game
from agentrl.errors import ConfigError, ToolError

FACES = ("ones", "twos", "threes", "fours", "fives", "sixes")
BID = re.compile(r"\b(\d{1,2})\s+(one|two|three|four|five|six)(?:s|es)?\b")
RULES = (
    "Liar's dice: {players} players with {dice} dice each; everybody sees only their own. In turn, bid how many dice "
    'of a face there are at least among all, such as "2 fives", higher than the last bid in number, or equal in number '
    'and higher in face; or say "liar" to challenge the last bid. If the bid holds, the bidder wins, else the '
    "challenger. Your dice: {own}."
)


class LiarsDice(Game):
    """Bid on hidden dice, or call the bid of the agent before you a lie.

    Args:
        players: agents, 2 to 6.
        dice: of each agent, 1 to 6.
    """

    name = "liars_dice"

    def __init__(self, players: int = 2, dice: int = 2) -> None:
        for key, value, least in (("players", players, 2), ("dice", dice, 1)):
            if not least <= value <= 6:
                raise ConfigError(f"env.{key} = {value}: allowed are {least} to 6")
        self.agents = ("first", "second", "third", "fourth", "fifth", "sixth")[:players]
        super().__init__()
        self.number, self.max_turns = dice, 3 * (len(FACES) * players * dice + 1)
        self.dice: dict[str, list[int]] = {agent: [] for agent in self.agents}
        self.bid: tuple[int, int] = (0, 0)
        self.bidder = self.challenger = ""

    def deal(self, rng: random.Random) -> Mapping[str, str]:
        """Throw the dice."""
        self.dice = {agent: sorted(rng.randint(1, 6) for _ in range(self.number)) for agent in self.agents}
        self.bid, self.bidder, self.challenger = (0, 0), "", ""
        self.turn = rng.choice(self.agents)
        shown = {agent: " ".join(map(str, own)) for agent, own in self.dice.items()}
        rules = {
            agent: RULES.format(players=len(self.agents), dice=self.number, own=own) for agent, own in shown.items()
        }
        return {agent: f"{text} You begin." if agent == self.turn else text for agent, text in rules.items()}

    def move(self, agent: str, text: str) -> str:
        """Bid, or challenge the last bid."""
        if "liar" in text:
            if not self.bidder:
                raise ToolError('there is no bid yet; bid, such as "1 twos"')
            self.challenger = agent
            return f"The {agent} player says: liar."
        found = BID.search(text)
        if found is None:
            raise ToolError('bid a number and a face, such as "2 fives"' + (', or say "liar"' if self.bidder else ""))
        bid = int(found[1]), 1 + next(place for place, face in enumerate(FACES) if face.startswith(found[2]))
        if not self.bid < bid or not 1 <= bid[0] <= self.total:
            least = f"higher than {spoken(self.bid)}" if self.bidder else "1 die or more"
            raise ToolError(f"bid {least}, and at most {self.total} dice")
        self.bid, self.bidder = bid, agent
        self.turn = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        return f"The {agent} player bids {spoken(bid)}."

    @property
    def total(self) -> int:
        """All dice."""
        return self.number * len(self.agents)

    def payoffs(self) -> Mapping[str, float] | None:
        """1 for the winner of the challenge, 0 for the loser, a draw for the others."""
        if not self.challenger:
            return None
        count = sum(own.count(self.bid[1]) for own in self.dice.values())
        holds = count >= self.bid[0]
        results = dict.fromkeys(self.agents, self.draw)
        return {**results, self.bidder: float(holds), self.challenger: float(not holds)}

    def critic_view(self, agent: str) -> list[float]:
        """By how many dice, as a share of all, the last bid holds; below 0 where it does not, 0 where there is none."""
        count = sum(own.count(self.bid[1]) for own in self.dice.values())
        return [(count - self.bid[0]) / self.total if self.bidder else 0.0]

    def best_move(self) -> str:
        """The likeliest bid, or a challenge where the last bid is less likely than that."""
        own = self.dice[self.turn]
        possible = product(range(1, self.total + 1), range(1, 7))
        bids = [bid for bid in possible if bid > self.bid]
        best = max(bids, key=lambda bid: (self.likelihood(bid, own), -bid[0], -bid[1]), default=None)
        doubt = 1 - self.likelihood(self.bid, own) if self.bidder else 0.0
        if best is None or (self.bidder and doubt > self.likelihood(best, own)):
            return "liar"
        return spoken(best)

    def likelihood(self, bid: tuple[int, int], own: list[int]) -> float:
        """The probability that a bid holds, given one's own dice and fair other ones."""
        others, missing = self.total - len(own), bid[0] - own.count(bid[1])
        return float(sum(comb(others, k) * 5 ** (others - k) for k in range(max(missing, 0), others + 1)) / 6**others)

    def position(self) -> dict[str, Any]:
        """Dice and bids."""
        return {"dice": self.dice, "bid": self.bid, "bidder": self.bidder, "challenger": self.challenger}

    def resume(self, position: dict[str, Any]) -> None:
        """Dice and bids."""
        number, face = position["bid"]
        self.dice, self.bid = position["dice"], (number, face)
        self.bidder, self.challenger = position["bidder"], position["challenger"]


def spoken(bid: tuple[int, int]) -> str:
    """A bid in words."""
    return f"{bid[0]} {FACES[bid[1] - 1]}"

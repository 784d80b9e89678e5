"""Kuhn poker (Kuhn, 1950): three cards, one bet, and the smallest game in which bluffing is a part of playing well.

Each of two agents pays one chip and gets one of the cards jack, queen, king; the third stays hidden. They check or bet
a chip in turn; a bet is called or folded. The expert plays the equilibrium in which the first agent never bluffs:
nobody can gain against it in expectation, and the first agent loses 1/18 of a chip per deal.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from agentrl.envs.builtin.games.base import Game
from agentrl.errors import ToolError

CARDS = ("jack", "queen", "king")
STAKE = 2
"""Chips that an agent can lose."""
MOVES = {"": ("check", "bet"), "check": ("check", "bet"), "bet": ("call", "fold"), "check bet": ("call", "fold")}
"""The legal moves after a history of moves."""
OVER = frozenset({"check check", "bet call", "bet fold", "check bet call", "check bet fold"})
RULES = (
    "Kuhn poker: each of you has paid 1 chip and has one of three cards (jack, queen, king; the king is the highest). "
    "Check, or bet 1 chip more; a bet is answered by call or fold. The higher card wins the pot. "
    "Your card: {card}. Answer with one word."
)


class KuhnPoker(Game):
    """Two agents, three cards, one bet: bluff and call as often as is right."""

    name = "kuhn_poker"
    max_turns = 12

    def __init__(self) -> None:
        super().__init__()
        self.cards: dict[str, str] = dict.fromkeys(self.agents, "")
        self.history: list[str] = []
        self.luck = 0.0

    def deal(self, rng: random.Random) -> Mapping[str, str]:
        self.cards = dict(zip(self.agents, rng.sample(CARDS, 2), strict=True))
        self.history, self.turn, self.luck = [], self.agents[0], rng.random()
        openings = {agent: RULES.format(card=card) for agent, card in self.cards.items()}
        return {agent: f"{text} You begin." if agent == self.turn else text for agent, text in openings.items()}

    def move(self, agent: str, text: str) -> str:
        legal = MOVES[" ".join(self.history)]
        word = text.strip(" .!\"'")
        if word not in legal:
            raise ToolError(f"answer {' or '.join(legal)}")
        self.history.append(word)
        self.turn = next(other for other in self.agents if other != agent)
        return f"Your opponent says: {word}. {' or '.join(MOVES.get(' '.join(self.history), ('over',)))}?"

    def payoffs(self) -> Mapping[str, float] | None:
        """Chips won or lost, from -2 to 2, scaled to 0 to 1."""
        history = " ".join(self.history)
        if history not in OVER:
            return None
        if self.history[-1] == "fold":
            winner, chips = self.agents[len(self.history) % 2], 1  # who did not make the last move
        else:
            winner, chips = max(self.agents, key=lambda agent: CARDS.index(self.cards[agent])), 1 + ("bet" in history)
        return {agent: 0.5 + (chips if agent == winner else -chips) / (2 * STAKE) for agent in self.agents}

    def critic_view(self, agent: str) -> list[float]:
        """1 where the agent has the higher card, else -1: what the cards decide and it cannot know."""
        higher = max(self.agents, key=lambda each: CARDS.index(self.cards[each]))
        return [1.0 if agent == higher else -1.0]

    def best_move(self) -> str:
        """The equilibrium's move; its chances are decided by the deal, so that a demonstration repeats."""
        history = " ".join(self.history)
        passive, active = ("check", "bet") if "bet" not in self.history else ("fold", "call")
        return active if self.luck < probability(self.cards[self.turn], history) else passive

    def position(self) -> dict[str, Any]:
        return {"cards": self.cards, "history": self.history, "chance": self.luck}

    def resume(self, position: dict[str, Any]) -> None:
        self.cards, self.history, self.luck = position["cards"], position["history"], position["chance"]


def probability(card: str, history: str) -> float:
    """The equilibrium's probability of a bet or a call with a card after these moves."""
    return {
        "": {"jack": 0.0, "queen": 0.0, "king": 0.0},
        "check": {"jack": 1 / 3, "queen": 0.0, "king": 1.0},
        "bet": {"jack": 0.0, "queen": 1 / 3, "king": 1.0},
        "check bet": {"jack": 0.0, "queen": 1 / 3, "king": 1.0},
    }[history][card]

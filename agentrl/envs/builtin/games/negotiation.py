"""Negotiation: two agents divide things that each values in its own way, which the other one does not know.

After Lewis et al. (2017, arXiv:1706.05125). There are a few books, hats and balls; all of them together are worth 10 to
each agent, by hidden values. They talk in turn; a message may end with an offer ("OFFER books=1 hats=0 balls=2" is what
the speaker would keep), which the other one accepts with "ACCEPT". Without an agreement nobody gets anything. Each gets
the value of what it has, so they gain by finding out who values what. The expert knows both values: it offers the
division with the greatest sum, and among those the most even one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from agentrl.envs.builtin.games.base import Game
from agentrl.errors import ConfigError, ToolError

THINGS = ("books", "hats", "balls")
WORTH = 10
"""The worth of all things together to each agent."""
OFFER = re.compile(r"\boffer\b((?:[\s,;]+(?:books|hats|balls)\s*=\s*\d{1,2})+)")
KEPT = re.compile(r"\b(?:books|hats|balls)\s*=\s*\d")
ACCEPT = re.compile(r"^\W*accept\W*$")
RULES = (
    "You and your partner divide {things}. Each of you values them differently; to you they are worth: {values}. Talk "
    'in turn. To offer a division, end your message with what you would keep, such as "OFFER books=1 hats=0 balls=1"; '
    "the rest is your partner's. To take your partner's offer, write ACCEPT alone. You have {rounds} messages each; "
    "without an agreement neither of you gets anything."
)


class Negotiation(Game):
    """Talk, offer and accept: divide things between two agents with hidden values.

    Args:
        rounds: messages that each agent has, 1 to 20.
    """

    name = "negotiation"
    draw = 0.0
    chance = 0.4
    """Half of the agents' places only take what a fair partner offers."""

    def __init__(self, rounds: int = 5) -> None:
        if not 1 <= rounds <= 20:
            raise ConfigError(f"env.rounds = {rounds}: allowed are 1 to 20")
        super().__init__()
        self.rounds, self.max_turns = rounds, 2 * rounds * 3
        self.counts: dict[str, int] = dict.fromkeys(THINGS, 0)
        self.values: dict[str, dict[str, int]] = {agent: dict.fromkeys(THINGS, 0) for agent in self.agents}
        self.offer: dict[str, int] | None = None
        self.offered_by, self.agreed, self.said = "", False, 0

    def deal(self, rng: random.Random) -> Mapping[str, str]:
        """Choose how many things there are, and values that sum up to the same for both."""
        self.offer, self.offered_by, self.agreed, self.said, self.turn = None, "", False, 0, self.agents[0]
        while True:
            self.counts = {thing: rng.randint(1, 4) for thing in THINGS}
            possible = list(valuations(self.counts))
            if len(possible) > 1:
                break
        self.values = dict(zip(self.agents, rng.sample(possible, 2), strict=True))
        things = ", ".join(f"{count} {thing}" for thing, count in self.counts.items())
        return {
            agent: RULES.format(things=things, values=describe_values(own), rounds=self.rounds)
            + (" You begin." if agent == self.turn else "")
            for agent, own in self.values.items()
        }

    def move(self, agent: str, text: str) -> str:
        if ACCEPT.match(text):
            if self.offer is None or self.offered_by == agent:
                raise ToolError("there is no offer of your partner's to accept")
            self.agreed = True
        elif not text:
            raise ToolError("write something")
        elif (found := OFFER.search(text)) is not None:
            if len(KEPT.findall(text)) > len(set(re.findall("|".join(THINGS), found[1]))):
                raise ToolError("make one offer that names each thing once")  # else the partner reads one of several
            self.offer, self.offered_by = self._read(found[1]), agent
        elif re.search(r"\boffer\b.*=", text):
            raise ToolError('an offer is written as "OFFER books=1 hats=0 balls=1"')
        self.said += 1
        self.turn = next(other for other in self.agents if other != agent)
        return f"Your partner: {text}"

    def _read(self, text: str) -> dict[str, int]:
        """Return what the speaker keeps; things that are not named are the partner's."""
        named = {name: int(number) for name, number in re.findall(r"(\w+)\s*=\s*(\d+)", text)}
        kept = {**dict.fromkeys(THINGS, 0), **named}
        for thing, number in kept.items():
            if number > self.counts[thing]:
                raise ToolError(f"there are {self.counts[thing]} {thing}, not {number}")
        return kept

    def payoffs(self) -> Mapping[str, float] | None:
        """The value of what each has, as a share of all; 0 for both without an agreement."""
        if self.agreed and self.offer is not None:
            return self.shares(self.offer, self.offered_by)
        return dict.fromkeys(self.agents, 0.0) if self.said >= 2 * self.rounds else None

    def shares(self, kept: Mapping[str, int], by: str) -> dict[str, float]:
        """The value of a division to each agent."""
        rest = {thing: self.counts[thing] - number for thing, number in kept.items()}
        has = {agent: kept if agent == by else rest for agent in self.agents}
        return {agent: worth(has[agent], own) / WORTH for agent, own in self.values.items()}

    def critic_view(self, agent: str) -> list[float]:
        """The value of each thing to the partner, as a share of all."""
        partner = next(other for other in self.agents if other != agent)
        return [self.values[partner][thing] / WORTH for thing in THINGS]

    def best_move(self) -> str:
        possible = product(*(range(self.counts[thing] + 1) for thing in THINGS))
        divisions = [dict(zip(THINGS, each, strict=True)) for each in possible]
        merit = {place: self._merit(self.shares(kept, self.turn)) for place, kept in enumerate(divisions)}
        best = max(merit, key=lambda place: merit[place])
        theirs = self.offer if self.offered_by != self.turn else None
        if theirs is not None and self._merit(self.shares(theirs, self.offered_by)) >= merit[best]:
            return "ACCEPT"
        return "OFFER " + " ".join(f"{thing}={number}" for thing, number in divisions[best].items())

    def _merit(self, shares: Mapping[str, float]) -> tuple[float, float]:
        return round(sum(shares.values()), 6), min(shares.values())

    def position(self) -> dict[str, Any]:
        names = ("counts", "values", "offer", "offered_by", "agreed", "said")
        return {name: getattr(self, name) for name in names}

    def resume(self, position: dict[str, Any]) -> None:
        vars(self).update(position)


def valuations(counts: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """All values under which all things together are worth `WORTH`."""
    for values in product(range(WORTH + 1), repeat=len(THINGS)):
        own = dict(zip(THINGS, values, strict=True))
        if worth(counts, own) == WORTH:
            yield own


def worth(numbers: Mapping[str, int], values: Mapping[str, int]) -> int:
    """The value of so many things."""
    return sum(number * values[thing] for thing, number in numbers.items())


def describe_values(values: Mapping[str, int]) -> str:
    """Values in words."""
    return ", ".join(f"{value} for each of the {thing}" for thing, value in values.items())

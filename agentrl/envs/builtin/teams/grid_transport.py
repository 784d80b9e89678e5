"""`env=grid_transport`: an arm stands in each cell of a grid, and parcels have to come to their cells.

After LLaMAC's grid transportation (arXiv:2311.13884) and BoxNet (arXiv:2309.15943). All arms move at once, each hands a
parcel of its cell on to a neighbour, and none sees more than its cell. There are as many rounds as the longest way and
one for each other parcel, which a parcel may have to wait for once; so an expert loses nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations, product
from math import perm
from typing import Any

from agentrl.envs.base import reward
from agentrl.envs.builtin.teams.critics import CRITICS, AdvisedWorld, Plan
from agentrl.errors import ConfigError
from agentrl.types import Message, Session

Cell = tuple[int, int]
MOVES: Mapping[str, Cell] = {"stay": (0, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
ARMS = (2, 50)
PARCELS = (1, 8)
SITUATIONS = 1024
"""At most; of a larger grid they are drawn."""


def distance(one: Cell, other: Cell) -> int:
    """Return how many moves are between two cells."""
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


class GridTransport(AdvisedWorld):
    """Arms, one in each cell, that hand parcels on until each is where it is wanted.

    Args:
        rows: of the grid.
        columns: of the grid; there are 2 to 50 cells, each with an arm.
        parcels: how many, 1 to 8.
        critics: whether `explorer`, `exploiter` and `assessor` speak in each round before the arms.
    """

    name = "grid_transport"
    chance = 0.6
    chance_with_critics = 0.8

    def __init__(self, rows: int = 1, columns: int = 3, parcels: int = 2, critics: bool = False) -> None:
        if not (rows > 0 and columns > 0 and ARMS[0] <= rows * columns <= ARMS[1]):
            raise ConfigError(f"env.rows = {rows}, env.columns = {columns}: allowed are 2 to 50 cells together")
        if not PARCELS[0] <= parcels <= PARCELS[1]:
            raise ConfigError(f"env.parcels = {parcels}: allowed are 1 to 8")
        self.rows, self.columns = rows, columns
        self.cells = {f"arm_{row}_{column}": (row, column) for row in range(rows) for column in range(columns)}
        self.rounds = rows + columns - 2 + parcels - 1
        self._situations = self._list_situations(parcels)
        super().__init__(tuple(self.cells), critics)

    def _list_situations(self, parcels: int) -> list[Mapping[str, Any]]:
        """Beginnings and ends of all parcels, which are different cells for each."""
        cells = list(self.cells.values())
        ways: Any
        if perm(len(cells), 2) ** parcels <= SITUATIONS:
            ways = product(permutations(cells, 2), repeat=parcels)
        else:
            draw = random.Random(f"{self.name}/{self.rows}/{self.columns}/{parcels}")
            ways = ([draw.sample(cells, 2) for _ in range(parcels)] for _ in range(SITUATIONS))
        return [{"starts": [one for one, _ in way], "ends": [other for _, other in way]} for way in ways]

    def situations(self) -> Sequence[Mapping[str, Any]]:
        return self._situations

    def opening(self, agent: str) -> str:
        if agent in CRITICS:
            return super().opening(agent)
        if not self.simultaneous:  # told when the assessor has spoken
            return self._name(agent)
        return f"{self._name(agent)} {self._tell(agent, self.situation['starts'])}"

    def options(self, agent: str) -> Sequence[str]:
        return super().options(agent) if agent in CRITICS else tuple(MOVES)

    def overview(self) -> str:
        ways = zip(self.places(), self.situation["ends"], strict=True)
        left = [f"{at[0]} {at[1]} to {end[0]} {end[1]}" for at, end in ways if at != end]
        return f"Parcels: {', '.join(left) or 'none'}"

    def news(self, agent: str) -> str:
        if agent in CRITICS:
            return super().news(agent)
        return " ".join(filter(None, (self._tell(agent, self.places()), self.advice(agent))))

    def agent_of(self, messages: Sequence[Message]) -> str:
        return next(agent for agent in self.agents if messages[0].text.startswith(self._name(agent)))

    def places(self) -> list[Cell]:
        """Return where each parcel is after the rounds that are over."""
        at = list(self.situation["starts"])
        for turn in range(min(map(len, self.said.values()))):
            held = {agent: self._find_parcel(cell, at) for agent, cell in self.cells.items()}
            for agent, parcel in held.items():
                if parcel is not None:
                    at[parcel] = self._move(at[parcel], self.said[agent][turn])
        return at

    def payoffs(self) -> Mapping[str, float]:
        """1 where all parcels are at their ends; else the share of the way that they have come, 0 if it is negative."""
        starts, ends = self.situation["starts"], self.situation["ends"]
        whole = sum(map(distance, starts, ends))
        return {"crew": max(0.0, 1 - sum(map(distance, self.places(), ends)) / whole)}

    @reward
    def carried(self, session: Session) -> Mapping[str, float]:
        """Return the share of the way that parcels have come, for all."""
        over = all(len(own) == self.rounds for own in self.said.values())
        return self.payoffs() if over else {"crew": 0.0}

    def best_plan(self) -> Plan:
        """Along the row first, then along the column."""
        at = self.places()
        return {agent: self._find_way(cell, at) for agent, cell in self.cells.items()}

    def _find_way(self, cell: Cell, at: Sequence[Cell]) -> str:
        parcel = self._find_parcel(cell, at)
        if parcel is None:
            return "stay"
        row, column = self.situation["ends"][parcel]
        if column != cell[1]:
            return "right" if column > cell[1] else "left"
        return "down" if row > cell[0] else "up"

    def _find_parcel(self, cell: Cell, at: Sequence[Cell]) -> int | None:
        """Return the parcel that a cell's arm hands on, of those wanted elsewhere: the one with the longest way."""
        ends = self.situation["ends"]
        there = [parcel for parcel, place in enumerate(at) if place == cell != ends[parcel]]
        return max(there, key=lambda parcel: (distance(cell, ends[parcel]), -parcel), default=None)

    def _move(self, cell: Cell, word: str) -> Cell:
        down, right = MOVES.get(word, MOVES["stay"])
        row, column = cell[0] + down, cell[1] + right
        return (row, column) if 0 <= row < self.rows and 0 <= column < self.columns else cell

    def _name(self, agent: str) -> str:
        if agent in CRITICS:
            return f"You are {agent}."
        row, column = self.cells[agent]
        return f"You are at {row} {column}."

    def _tell(self, agent: str, at: Sequence[Cell]) -> str:
        parcel = self._find_parcel(self.cells[agent], at)
        if parcel is None:
            return "No parcel."
        row, column = self.situation["ends"][parcel]
        return f"Parcel to {row} {column}."

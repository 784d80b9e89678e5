"""`env=text_adventure`: a tower to climb, in up to hundreds of turns, with words that are needed much later.

Each floor is a tree of rooms; the agent sees the one it is in. Somewhere lies a key, which the gate to the next floor
takes, and somewhere a scroll, which shows a word once. The gate's guardian asks for the word of a floor further down:
at level 3 of the scroll four floors below, some 45 turns ago. A wrong word brings the agent back to the floor's
entrance, with nothing else lost. Each gate is worth the same share of a return of 1.

A tower is a function of its number and level; those divisible by ten are the `eval` split's. A floor is built, not
drawn until it fits, so that a tower of twenty floors takes milliseconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

from agentrl.envs.base import Env
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.schema import shown
from agentrl.tools.tool import tool
from agentrl.types import Message, StepResult, Task

LEVELS = {1: (3, 5, 0), 2: (8, 7, 1), 3: (20, 9, 4)}
"""By level: floors, rooms of each, and how many floors ago the word was shown that a guardian asks for."""
TURNS_PER_ROOM = 5
"""Turns allowed for each room of the tower: three to four times what the expert needs."""
EVAL_EVERY = 10
WORD_LETTERS = 5
BRANCHING = 3
"""A new room is joined to one of so many newest ones, so that ways are neither a line nor a star."""
ROOMS = (
    "hall",
    "cellar",
    "attic",
    "kitchen",
    "library",
    "chapel",
    "armoury",
    "garden",
    "stable",
    "pantry",
    "cave",
    "well",
)
PLACES = ("an old", "a dark", "a cold", "a bright", "a narrow", "a ruined")


@dataclass(frozen=True)
class Floor:
    """One floor; the first room is its entrance.

    Attributes:
        rooms: their names.
        doors: the rooms that each room is joined to, by index.
        key: the key's room; so are `scroll` and `gate`.
        word: what the scroll shows.
    """

    rooms: tuple[str, ...]
    doors: tuple[tuple[int, ...], ...]
    key: int
    scroll: int
    gate: int
    word: str

    def toward(self, start: int, goal: int) -> int:
        """The next room on the way to another one."""
        came = {goal: goal}
        queue = deque([goal])
        while start not in came:
            room = queue.popleft()
            for other in self.doors[room]:
                if other not in came:
                    came[other] = room
                    queue.append(other)
        return came[start]


class TextAdventure(Env):
    """Climb a tower: find each floor's key and scroll, and remember words for guardians several floors above.

    Args:
        level: 1 is 3 floors (about 26 calls), 2 is 8 floors (about 83), 3 is 20 floors (about 220).
    """

    def __init__(self, level: int = 1) -> None:
        if level not in LEVELS:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, LEVELS))}")
        self.level = level
        floors, rooms, self.delay = LEVELS[level]
        self.max_turns = TURNS_PER_ROOM * floors * rooms
        self._tower: tuple[Floor, ...] = ()
        self._floor = self._room = 0
        self._has_key = self._has_read = False

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """Towers without end."""
        for number in count():
            if (number % EVAL_EVERY == 0) == (split == "eval"):
                yield Task(id=f"tower-{self.level}-{number}", data={"number": number})

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """Stand at the entrance of the lowest floor."""
        self._tower = tower(self.level, task["number"])
        self._enter(0)
        which = f"the floor {self.delay} below his" if self.delay else "his floor"
        lowest = " The lowest floors' guardians ask for the word of the lowest floor." if self.delay else ""
        return (
            f"Climb the tower; it has {len(self._tower)} floors. To leave a floor, take its key, go to its gate and "
            f"tell the guardian the word on the scroll of {which}.{lowest} A scroll can be read once. {self._look()}"
        )

    async def step(self, message: Message) -> StepResult:
        """Run the calls; a step through no gate is worth 0."""
        result = await self.run_tools(message)
        result.reward = result.reward or 0.0
        return result

    @tool(quick=True)
    def go(self, room: str) -> str:
        """Walk into a room next to this one.

        Args:
            room: its name.
        """
        for other in self._here.doors[self._room]:
            if self._here.rooms[other] == room.strip().casefold():
                self._room = other
                return self._look()
        raise ToolError(f"no door leads to {shown(room)} from here")

    @tool(quick=True)
    def take(self) -> str:
        """Take the key that lies here."""
        if self._has_key or self._room != self._here.key:
            raise ToolError("there is nothing to take here")
        self._has_key = True
        return "You have the key."

    @tool(quick=True)
    def read(self) -> str:
        """Read the scroll that lies here; it can be read once."""
        if self._has_read or self._room != self._here.scroll:
            raise ToolError("there is nothing to read here")
        self._has_read = True
        return f"The scroll says: {self._here.word}. It falls to dust."

    @tool(quick=True)
    def answer(self, word: str) -> str:
        """Tell the guardian at the gate a word.

        Args:
            word: the word that he asks for.
        """
        if self._room != self._here.gate:
            raise ToolError("there is no guardian here")
        if not self._has_key:
            raise ToolError("the gate is locked, and you have no key")
        if word.strip().casefold() != self._wanted:
            self._room = 0
            return f"Wrong. The guardian leads you back. {self._look()}"
        self.earn(1 / len(self._tower))
        if self._floor + 1 == len(self._tower):
            self.end()
            return "The last gate opens. You have climbed the tower."
        self._enter(self._floor + 1)
        return f"The gate opens. Floor {self._floor + 1}. {self._look()}"

    @property
    def _here(self) -> Floor:
        return self._tower[self._floor]

    @property
    def _wanted(self) -> str:
        """The word that this floor's guardian asks for."""
        return self._tower[max(0, self._floor - self.delay)].word

    def _enter(self, floor: int) -> None:
        self._floor, self._room, self._has_key, self._has_read = floor, 0, False, False

    def _look(self) -> str:
        floor, room = self._here, self._room
        things = ["A key lies here."] * (room == floor.key and not self._has_key)
        things += ["A scroll lies here."] * (room == floor.scroll and not self._has_read)
        things += ["The gate is here, and a guardian who asks for a word."] * (room == floor.gate)
        place = PLACES[(room + self._floor) % len(PLACES)]
        doors = ", ".join(floor.rooms[other] for other in floor.doors[room])
        return " ".join([f"You are in {place} {floor.rooms[room]}. Doors: {doors}.", *things])

    def state(self) -> dict[str, Any]:
        """The agent's place and possessions; the tower follows from the task."""
        return {"floor": self._floor, "room": self._room, "has_key": self._has_key, "has_read": self._has_read}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        """Continue in the same tower."""
        self._tower = tower(self.level, task["number"])
        self._floor, self._room = state["floor"], state["room"]
        self._has_key, self._has_read = state["has_key"], state["has_read"]

    def expert(self, messages: Sequence[Message]) -> Message:
        """The scroll, the key, and then the gate."""
        floor = self._here
        goal = floor.gate if self._has_read and self._has_key else floor.key if self._has_read else floor.scroll
        if self._room != goal:
            return self.call("go", room=floor.rooms[floor.toward(self._room, goal)])
        if goal == floor.scroll and not self._has_read:
            return self.call("read")
        return self.call("answer", word=self._wanted) if self._has_key else self.call("take")


@lru_cache(maxsize=64)
def tower(level: int, number: int) -> tuple[Floor, ...]:
    """The tower of a number."""
    floors, rooms, _ = LEVELS[level]
    rng = random.Random(f"text_adventure/{level}/{number}")
    return tuple(_floor(rng, rooms) for _ in range(floors))


def _floor(rng: random.Random, rooms: int) -> Floor:
    names = rng.sample(ROOMS, rooms)
    doors: list[list[int]] = [[] for _ in range(rooms)]
    for room in range(1, rooms):
        other = rng.randrange(max(0, room - BRANCHING), room)
        doors[room].append(other)
        doors[other].append(room)
    key, scroll, gate = rng.sample(range(1, rooms), 3)
    word = "".join(rng.choice("bdfgklmnprstvz" if place % 2 == 0 else "aeiou") for place in range(WORD_LETTERS))
    return Floor(tuple(names), tuple(map(tuple, doors)), key, scroll, gate, word)

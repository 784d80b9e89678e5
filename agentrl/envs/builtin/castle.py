"""A castle to explore: a long horizon, partial observation, and a reward for every milestone.

Rooms lie on a grid and are joined by a random spanning tree, so there is one way between any two. Some doors
on the way from the gate to the crown are locked; the key of each lies somewhere before it, often at the end
of another branch. The agent sees only the room that it is in, and has to remember the rest. Picking up a
key, opening a door and taking the crown are the milestones: they share a return of 1 equally, so partial
progress is rewarded. A solution takes 20 to 40 calls.

A world is a function of its number alone; numbers divisible by ten are the `eval` split's.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, Literal

from agentrl.envs.base import Env
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.tool import tool
from agentrl.types import Message, StepResult, Task

SOLUTION = (20, 40)
"""Calls that the shortest solution may take, in a castle of the default size."""
TURNS_PER_STEP = 3
"""Turns allowed for each call of the longest solution, for exploration."""
EVAL_EVERY = 10
TRIES = 1000
"""Castles sampled before a size counts as impossible."""

Direction = Literal["north", "east", "south", "west"]
Room = tuple[int, int]
Edge = frozenset[Room]
MOVES: dict[str, Room] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
COLOURS = ("red", "blue", "green", "white", "black", "golden")
CROWN = "crown"


@dataclass
class CastleWorld:
    """One castle and what has happened in it."""

    here: Room
    doors: set[Edge]
    locked: dict[Edge, str] = field(default_factory=dict)
    items: dict[Room, str] = field(default_factory=dict)
    bag: list[str] = field(default_factory=list)

    def neighbours(self, room: Room) -> list[tuple[str, Room]]:
        """The doors of a room: direction and what lies behind."""
        beyond = ((name, (room[0] + dx, room[1] + dy)) for name, (dx, dy) in MOVES.items())
        return [(name, other) for name, other in beyond if frozenset((room, other)) in self.doors]

    def path(self, start: Room, goal: Room) -> list[Room]:
        """The way from one room to another, both included, through locked doors as well."""
        came: dict[Room, Room | None] = {start: None}
        queue = deque([start])
        while queue and goal not in came:
            room = queue.popleft()
            for _, other in self.neighbours(room):
                if other not in came:
                    came[other] = room
                    queue.append(other)
        steps: list[Room] = []
        at: Room | None = goal
        while at is not None:
            steps.append(at)
            at = came[at]
        return steps[::-1]

    def look(self) -> str:
        """Describe the room and its contents."""
        exits = []
        for name, other in self.neighbours(self.here):
            colour = self.locked.get(frozenset((self.here, other)))
            exits.append(f"{name} ({colour} door, locked)" if colour else name)
        item = f" You see a {self.items[self.here]}." if self.here in self.items else ""
        return f"Room {self.here[0]},{self.here[1]}. Exits: {', '.join(exits)}.{item}"

    def next_call(self) -> tuple[str, dict[str, str]]:
        """The first call of the shortest solution from here."""
        goal = self._goal()
        if goal == self.here:
            return "take", {"item": self.items[self.here]}
        ahead = self.path(self.here, goal)[1]
        direction = next(name for name, other in self.neighbours(self.here) if other == ahead)
        locked = frozenset((self.here, ahead)) in self.locked
        return ("unlock" if locked else "go"), {"direction": direction}

    def _goal(self) -> Room:
        """The crown, or else the key of the first locked door that is in the way and has no key in the bag yet."""
        where = {item: room for room, item in self.items.items()}
        goal = where[CROWN]
        while True:
            missing = [
                colour
                for one, other in pairwise(self.path(self.here, goal))
                if (colour := self.locked.get(frozenset((one, other)))) and f"{colour} key" not in self.bag
            ]
            if not missing:
                return goal
            goal = where[f"{missing[0]} key"]


class Castle(Env):
    """Find the keys, open the doors, take the crown: a text world of 20 to 40 steps with step rewards.

    Args:
        width: rooms from west to east.
        height: rooms from north to south.
        locks: locked doors between the gate and the crown.
    """

    def __init__(self, width: int = 4, height: int = 4, locks: int = 3) -> None:
        if not (2 <= width <= 12 and 2 <= height <= 12):
            raise ConfigError(f"env.width = {width} and env.height = {height}: allowed are 2 to 12")
        if not 0 <= locks <= min(len(COLOURS), width + height - 3):
            most = min(len(COLOURS), width + height - 3)
            raise ConfigError(f"env.locks = {locks}: allowed are 0 to {most} in a castle of {width} by {height} rooms")
        self.width, self.height, self.locks = width, height, locks
        scale = width * height / 16
        self.solution = (round(SOLUTION[0] * scale), round(SOLUTION[1] * scale))
        self.max_turns = TURNS_PER_STEP * self.solution[1]
        self._world = CastleWorld((0, 0), set())

    def tasks(self, split: str = "train") -> Iterator[Task]:
        for number in count():
            if (number % EVAL_EVERY == 0) == (split == "eval"):
                yield Task(id=f"castle-{number}", data={"number": number})

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._world = build(self.width, self.height, self.locks, task["number"])
        return f"Find the crown. Keys open doors of their colour. {self._world.look()}"

    async def step(self, message: Message) -> StepResult:
        """Run the calls; a step without a milestone is worth 0."""
        result = await self.run_tools(message)
        result.reward = result.reward or 0.0
        return result

    @tool(quick=True)
    def go(self, direction: Direction) -> str:
        """Walk into the next room."""
        edge, other = self._door(direction)
        if edge in self._world.locked:
            raise ToolError(f"the {self._world.locked[edge]} door is locked")
        self._world.here = other
        return self._world.look()

    @tool(quick=True)
    def unlock(self, direction: Direction) -> str:
        """Open a locked door with the key of its colour."""
        edge, _ = self._door(direction)
        colour = self._world.locked.get(edge)
        if colour is None:
            raise ToolError(f"there is no locked door to the {direction}")
        if f"{colour} key" not in self._world.bag:
            raise ToolError(f"you have no {colour} key")
        del self._world.locked[edge]
        self._milestone()
        return f"The {colour} door is open."

    @tool(quick=True)
    def take(self, item: str) -> str:
        """Pick up what lies here.

        Args:
            item: its name, such as red key.
        """
        if self._world.items.get(self._world.here) != item:
            raise ToolError(f"there is no {item} here")
        self._world.bag.append(self._world.items.pop(self._world.here))
        self._milestone()
        if item == CROWN:
            self.end()
            return "You have the crown."
        return f"You have the {item}."

    def state(self) -> dict[str, Any]:
        world = self._world
        locked = [[sorted(edge), colour] for edge, colour in world.locked.items()]
        items = [[room, item] for room, item in world.items.items()]
        return {"here": world.here, "locked": locked, "items": items, "bag": world.bag}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self._world = world = build(self.width, self.height, self.locks, task["number"])
        world.here, world.bag = _room(state["here"]), list(state["bag"])
        world.locked = {frozenset(map(_room, edge)): colour for edge, colour in state["locked"]}
        world.items = {_room(room): item for room, item in state["items"]}

    def expert(self, messages: Sequence[Message]) -> Message:
        name, arguments = self._world.next_call()
        return self.call(name, **arguments)

    def fixtures(self) -> Iterator[Fixture]:
        """All of the shortest solution, its beginning up to what is picked up first, and nothing."""
        task = next(self.tasks())
        solution = list(solve(build(self.width, self.height, self.locks, task["number"])))
        calls = [self.call(name, **arguments) for name, arguments in solution]
        yield Fixture(task, calls, FixtureCredit.FULL, "the shortest solution")
        if self.locks:
            first = [name for name, _ in solution].index("take") + 1
            yield Fixture(task, calls[:first], FixtureCredit.PARTIAL, "the first key")
        yield Fixture(task, "", FixtureCredit.NONE, "silence")

    def _door(self, direction: str) -> tuple[Edge, Room]:
        for name, other in self._world.neighbours(self._world.here):
            if name == direction:
                return frozenset((self._world.here, other)), other
        raise ToolError(f"there is a wall to the {direction}")

    def _milestone(self) -> None:
        self.earn(1 / (2 * self.locks + 1))


def _room(place: Sequence[int]) -> Room:
    x, y = place
    return x, y


def build(width: int, height: int, locks: int, number: int) -> CastleWorld:
    """The castle of a number: the first sample that has the locks and a solution of the right length.

    Raises:
        ConfigError: none was found; the castle is too small for them.
    """
    rng = random.Random(f"castle/{width}/{height}/{locks}/{number}")
    scale = width * height / 16
    low, high = round(SOLUTION[0] * scale) if locks else 1, round(SOLUTION[1] * scale)
    for _ in range(TRIES):
        world = _draw(rng, width, height, locks)
        if world is not None and low <= solution_length(world) <= high:
            return world
    raise ConfigError(
        f"no castle of {width} by {height} rooms with {locks} locks has a solution of {low} to {high} steps"
    )


def solution_length(world: CastleWorld) -> int:
    """Calls that the expert needs; the world itself is left as it is."""
    return sum(1 for _ in solve(world))


def solve(world: CastleWorld) -> Iterator[tuple[str, dict[str, str]]]:
    """The expert's calls, tool and arguments; the world itself is left as it is."""
    world = CastleWorld(world.here, world.doors, dict(world.locked), dict(world.items), list(world.bag))
    while CROWN not in world.bag:
        name, arguments = world.next_call()
        yield name, arguments
        if name == "take":
            world.bag.append(world.items.pop(world.here))
            continue
        other = dict(world.neighbours(world.here))[arguments["direction"]]
        if name == "unlock":
            del world.locked[frozenset((world.here, other))]
        else:
            world.here = other


def _draw(rng: random.Random, width: int, height: int, locks: int) -> CastleWorld | None:
    rooms = [(x, y) for x in range(width) for y in range(height)]
    gate = rng.choice(rooms)
    world = CastleWorld(gate, _spanning_tree(rng, set(rooms), gate))
    crown = max(rooms, key=lambda room: (len(world.path(gate, room)), room))
    way = [frozenset(pair) for pair in pairwise(world.path(gate, crown))]
    if len(way) < locks:
        return None
    chosen = sorted(rng.sample(range(len(way)), locks))
    world.locked = dict(zip((way[place] for place in chosen), rng.sample(COLOURS, locks), strict=True))
    world.items[crown] = CROWN
    for place, colour in zip(chosen, list(world.locked.values()), strict=True):
        nearer = [room for room in rooms if room not in world.items and way[place] not in _edges(world, gate, room)]
        if not nearer:
            return None
        world.items[rng.choice(nearer)] = f"{colour} key"
    return world


def _edges(world: CastleWorld, start: Room, goal: Room) -> set[Edge]:
    return {frozenset(pair) for pair in pairwise(world.path(start, goal))}


def _spanning_tree(rng: random.Random, left: set[Room], start: Room) -> set[Edge]:
    """A random walk that backs out of dead ends (depth first) joins every room to the others in one way."""
    doors: set[Edge] = set()
    left.discard(start)
    stack = [start]
    while stack:
        x, y = stack[-1]
        open_to = sorted({(x + dx, y + dy) for dx, dy in MOVES.values()} & left)
        if not open_to:
            stack.pop()
            continue
        room = rng.choice(open_to)
        doors.add(frozenset((stack[-1], room)))
        left.discard(room)
        stack.append(room)
    return doors

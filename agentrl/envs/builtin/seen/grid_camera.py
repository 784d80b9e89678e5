"""A world that is seen through a camera alone: each tool call returns a picture of where everything is now.

On a grid stand a blue robot, a green goal and some walls. The words never say where: who is blind can only guess.

    user       Bring the robot to the green square.
    assistant  camera()
    tool       [picture]
    assistant  robot 21 goal 03, move("left")
    tool       [picture]
    …

The demonstrator (`demonstrate`) says in which column and row robot and goal are, then moves, at random half of the
time: what it says teaches a small model to see, and where to move is left to reinforcement learning.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal

from agentrl.envs.base import Env, reward
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, require_extra
from agentrl.tools.tool import tool
from agentrl.types import Message, Part, Session, Task, image

CELL, SIZE = 16, 4
"""Pixels of a cell's side, and cells of the world's, unless the options say otherwise."""
LARGEST = 6
WALLS = 3
SPARE = 3
"""Turns beyond the shortest way and the first look."""
EVAL_EVERY = 10
Direction = Literal["up", "down", "left", "right"]
MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
Place = tuple[int, int]


class GridCamera(Env):
    """Bring a robot to a goal in a world that only a camera's pictures show.

    Args:
        size: cells of the world's side, from 3 to 6.
        seed: which endless sequence of worlds `tasks` gives.
        blind: the pictures are white, to measure what a policy finds without seeing.
    """

    splits = ("train", "eval", "demo")

    def __init__(self, size: int = SIZE, seed: int = 0, blind: bool = False) -> None:
        if not 3 <= size <= LARGEST:
            raise ConfigError(f"env.size={size}: expected 3 to {LARGEST}")
        self.size, self.seed, self.blind = size, seed, blind
        self.max_turns = 2 * (size - 1) + 1 + SPARE
        self._task, self._robot = Task(id=""), (0, 0)

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        if model != "tiny":
            return {}
        return {
            "steps": 40,
            "warm_start.steps": 250,
            "warm_start.batch": 32,
            "warm_start.demos": 2048,
            "warm_start.lr": 3e-3,
            "algo.lr": 5e-4,
            "algo.minibatches": 1,
            "algo.warmup_steps": 0,
            "algo.kl_coef": 0.0,
            "rollout.turn_tokens": 32,
            "rollout.session_tokens": 1024,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        for index in count():
            rng = random.Random(f"grid_camera/{self.seed}/{split}/{index}")
            yield Task(id=f"{split}-{self.seed}-{index}", data=world(rng, self.size))

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._task, self._robot = task, _place(task["robot"])
        return "Bring the robot to the green square."

    @tool(quick=True)
    def camera(self) -> Part:
        """Take a picture of the world."""
        return self._draw_view()

    @tool(quick=True)
    def move(self, direction: Direction) -> Part:
        """Move the robot by one cell, and take a picture.

        Args:
            direction: up, down, left or right.
        """
        there = _move(self._robot, direction)
        if there in free(self._task.data):
            self._robot = there
        if self._robot == _place(self._task["goal"]):
            self.end()
        return self._draw_view()

    @reward
    def arrived(self, session: Session) -> float:
        """1 where the robot is at the goal."""
        return float(self._robot == _place(self._task["goal"]))

    def state(self) -> dict[str, Any]:
        return {"robot": list(self._robot)}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self._task, self._robot = task, _place(state["robot"])

    def expert(self, messages: Sequence[Message]) -> Message:
        if not any(message.role == "tool" for message in messages):
            return self.call("camera")
        return self._say_and_move(way(self._task.data, self._robot))

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> Message:
        if rng.random() < 0.5 and any(message.role == "tool" for message in messages):
            return self._say_and_move(rng.choice(list(MOVES)))
        return self.expert(messages)

    def _say_and_move(self, direction: str) -> Message:
        (x, y), (goal_x, goal_y) = self._robot, _place(self._task["goal"])
        said = f"robot {x}{y} goal {goal_x}{goal_y}"
        return self.call("move", direction=direction).model_copy(update={"content": said})

    def fixtures(self) -> Iterator[Fixture]:
        data = {"size": 3, "robot": [0, 0], "goal": [1, 0], "walls": [[0, 1]]}
        right, down = (self.call("move", direction=each) for each in ("right", "down"))
        yield Fixture(Task(id="beside", data=data), right, FixtureCredit.FULL)
        yield Fixture(Task(id="beside", data=data), [down, down], FixtureCredit.NONE, "against a wall")
        yield Fixture(Task(id="beside", data=data), "It is there.", FixtureCredit.NONE, "words")

    def _draw_view(self) -> Part:
        return image(draw(self._task.data, None if self.blind else self._robot))


def world(rng: random.Random, size: int) -> dict[str, Any]:
    """Walls, a robot and a goal that it can reach."""
    while True:
        places = rng.sample([(x, y) for x in range(size) for y in range(size)], 2 + WALLS)
        robot, goal, *walls = (list(place) for place in places)
        data = {"size": size, "robot": robot, "goal": goal, "walls": walls}
        if _distances(data).get(_place(robot), 0):
            return data


def free(data: dict[str, Any]) -> set[Place]:
    """The cells without a wall."""
    every = {(x, y) for x in range(data["size"]) for y in range(data["size"])}
    return every - {_place(wall) for wall in data["walls"]}


def way(data: dict[str, Any], robot: Place) -> str:
    """The first step of a shortest way to the goal."""
    far = _distances(data)
    return min(MOVES, key=lambda each: far.get(_move(robot, each), len(far) + 1))


def _distances(data: dict[str, Any]) -> dict[Place, int]:
    """The steps from each cell to the goal."""
    goal, cells = _place(data["goal"]), free(data)
    far, queue = {goal: 0}, deque([goal])
    while queue:
        at = queue.popleft()
        for each in MOVES:
            if (there := _move(at, each)) in cells and there not in far:
                far[there] = far[at] + 1
                queue.append(there)
    return far


def draw(data: dict[str, Any], robot: Place | None) -> Any:
    """The world from above, as PIL's image; without a robot, a white one."""
    with require_extra("vision", "pillow"):
        from PIL import Image, ImageDraw
    picture = Image.new("RGB", (data["size"] * CELL, data["size"] * CELL), "white")
    if robot is None:
        return picture
    pen = ImageDraw.Draw(picture)
    for x, y in map(_place, data["walls"]):
        pen.rectangle(_box(x, y, 0), fill="black")
    pen.rectangle(_box(*_place(data["goal"]), 2), fill=(40, 160, 60))
    pen.ellipse(_box(*robot, 3), fill=(50, 70, 220))
    return picture


def _box(x: int, y: int, inside: int) -> tuple[int, int, int, int]:
    return (x * CELL + inside, y * CELL + inside, (x + 1) * CELL - 1 - inside, (y + 1) * CELL - 1 - inside)


def _place(given: Sequence[int]) -> Place:
    return int(given[0]), int(given[1])


def _move(place: Place, direction: str) -> Place:
    dx, dy = MOVES[direction]
    return place[0] + dx, place[1] + dy

"""Questions about drawn shapes, small enough that a model of half a million parameters learns to see on a CPU.

A picture has 2 x 2 cells, or more; some hold a shape, a little off their middle. A question asks how many shapes have a
colour, which colour a shape has, where one is, or which box holds it:

    user       [picture] Where is the red circle?
    assistant  0 red circle 1 nothing 2 nothing 3 blue square 4 red circle 1 = top left

Nothing in the words tells the answer, which stands behind the last "=", or alone. The demonstrator (`demonstrate`) says
what is in each cell, then which of these are asked about, and errs in half of its answers, always in the same ones, so
imitation alone stays low; reinforcement learning finds the rest. A picture and its question belong to one
split by a hash of both: one in ten to `eval`, four to `demo`, five to `train`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, require_extra
from agentrl.types import Message, Session, Task, image

CELL, WIDTH, JITTER = 16, 12, 1
"""Pixels of a cell's side and of a shape's, and how far a shape is off the middle."""
COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 220)}
FORMS = ("circle", "square", "triangle")
ROWS = {2: ("top", "bottom"), 3: ("top", "middle", "bottom")}
COLUMNS = {2: ("left", "right"), 3: ("left", "centre", "right")}
"""Names of places, by the cells of the picture's side."""
KINDS = ("count", "colour", "position", "box")
ENOUGH = 0.5
"""Intersection over union from which on a box is right."""
SHARES = {"eval": (0,), "demo": (1, 2, 3, 4), "train": (5, 6, 7, 8, 9)}
"""A split's tenths of all pictures."""
_NUMBER = re.compile(r"\d+")

Shape = tuple[int, int, str, str, int, int]
"""A cell's row and column, a form, a colour, and pixels off the middle."""


class DrawnShapes(Env):
    """Questions about a picture of coloured shapes: their number, colour, place, and box.

    Args:
        size: cells of the picture's side: 2 or 3.
        kinds: the kinds of questions: count, colour, position, box.
        seed: which endless sequence of tasks `tasks` gives.
    """

    splits = ("train", "eval", "demo")
    max_turns = 1

    def __init__(self, size: int = 2, kinds: Sequence[str] = KINDS, seed: int = 0) -> None:
        if size not in ROWS:
            raise ConfigError(f"env.size={size}: expected 2 or 3")
        if not kinds or not set(kinds) <= set(KINDS):
            raise ConfigError(f"env.kinds={list(kinds)}: expected one or more of {', '.join(KINDS)}")
        self.size, self.kinds, self.seed = size, tuple(kinds), seed
        self._task = Task(id="")

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings with which the tiny model learns to see in a few minutes."""
        if model != "tiny":
            return {}
        return {
            "steps": 60,
            "warm_start.steps": 400,
            "warm_start.batch": 64,
            "warm_start.demos": 2048,
            "warm_start.lr": 3e-3,
            "algo.lr": 5e-4,
            "algo.minibatches": 1,
            "algo.warmup_steps": 0,
            "algo.kl_coef": 0.0,
            "rollout.turn_tokens": 48,
            "rollout.session_tokens": 192,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """An endless sequence of pictures and questions, the kinds in turn."""
        for index in count():
            rng = random.Random(f"shapes/{self.seed}/{split}/{index}")
            data = question(rng, self.kinds[index % len(self.kinds)], self.size)
            while split_of(data) != split:
                data = question(rng, self.kinds[index % len(self.kinds)], self.size)
            yield Task(id=f"{split}-{self.seed}-{index}", data=data)

    def reset(self, task: Task, *, seed: int | None = None) -> list[dict[str, Any]]:
        self._task = task
        return [{"role": "user", "content": [image(draw(task["shapes"], task["size"])), task["question"]]}]

    @reward
    def right(self, session: Session) -> float:
        """1 where the answer is right; of a box, where it covers enough of the shape's and little besides."""
        answer, said = self._task["answer"], session.answer.rpartition("=")[2].strip().strip(".").lower()
        if self._task["kind"] != "box":
            return float(said == answer)
        numbers = [int(one) for one in _NUMBER.findall(said)[:5] if len(one) < 4]
        return float(len(numbers) == 4 and overlap(numbers, [int(one) for one in answer.split()]) >= ENOUGH)

    def expert(self, messages: Sequence[Message]) -> str:
        return f"{describe_shapes(self._task.data)} = {self._task['answer']}"

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """The expert, which on half of the tasks answers for another picture."""
        own, seen = random.Random(f"errs/{self._task.id}"), describe_shapes(self._task.data)
        wrong = question(own, self._task["kind"], self._task["size"])["answer"]
        return f"{seen} = {self._task['answer'] if own.random() < 0.5 else wrong}"

    def fixtures(self) -> Iterator[Fixture]:
        shapes: list[Shape] = [
            (0, 0, "circle", "red", 0, 0),
            (0, 1, "square", "red", 0, 0),
            (1, 1, "square", "blue", 1, -1),
        ]
        seen = {"size": 2, "shapes": shapes}
        first = {**seen, "kind": "count", "question": "How many shapes are red?", "answer": "2"}
        yield Fixture(Task(id="count", data=first), "2", FixtureCredit.FULL)
        yield Fixture(Task(id="count", data=first), "0 red circle 1 red square 2 = 2", FixtureCredit.FULL, "seen first")
        yield Fixture(Task(id="count", data=first), "2 or 3", FixtureCredit.NONE, "two answers")
        boxed = {**seen, "kind": "box", "question": "Which box holds the red circle?", "answer": "2 2 14 14"}
        yield Fixture(Task(id="box", data=boxed), "3 2 14 13", FixtureCredit.FULL, "a box that is nearly right")
        yield Fixture(Task(id="box", data=boxed), "0 0 31 31", FixtureCredit.NONE, "the whole picture")
        yield Fixture(Task(id="box", data=boxed), "2 2 14 14 9", FixtureCredit.NONE, "five numbers")


def question(rng: random.Random, kind: str, size: int) -> dict[str, Any]:
    """A picture, and a question about it that has one answer."""
    while True:
        cells = rng.sample(
            [(row, column) for row in range(size) for column in range(size)], rng.randint(size, 2 * size)
        )
        off = range(-JITTER, JITTER + 1)
        shapes: list[Shape] = [
            (*cell, rng.choice(FORMS), rng.choice(list(COLOURS)), rng.choice(off), rng.choice(off)) for cell in cells
        ]
        if found := _ask(rng, kind, shapes, size):
            asked, answer, about = found
            data = {"size": size, "shapes": shapes, "kind": kind, "question": asked, "answer": answer}
            return data | {"about": [shape[0] * size + shape[1] + 1 for shape in about]}


def _ask(rng: random.Random, kind: str, shapes: Sequence[Shape], size: int) -> tuple[str, str, Sequence[Shape]] | None:
    """A question, its answer, and the shapes that it is about; None where the picture has none of that kind."""
    if kind == "count":
        colour = rng.choice(list(COLOURS))
        counted = [shape for shape in shapes if shape[3] == colour]
        return f"How many shapes are {colour}?", str(len(counted)), counted
    if kind == "colour":
        forms = [shape[2] for shape in shapes]
        single = [shape for shape in shapes if forms.count(shape[2]) == 1]
        return (f"Which colour has the {single[0][2]}?", single[0][3], single[:1]) if single else None
    looks = [shape[2:4] for shape in shapes]
    single = [shape for shape in shapes if looks.count(shape[2:4]) == 1]
    if not single:
        return None
    shape = rng.choice(single)
    if kind == "position":
        place = f"{ROWS[size][shape[0]]} {COLUMNS[size][shape[1]]}"
        return f"Where is the {shape[3]} {shape[2]}?", place, [shape]
    return f"Which box holds the {shape[3]} {shape[2]}?", " ".join(map(str, box_of(shape))), [shape]


def describe_shapes(data: Mapping[str, Any]) -> str:
    """Return what is in each cell of a task's picture, row by row, and its number; then again the cells asked about.

    A number is a token of its own, so that what is in a cell becomes one too, whichever cell it is in, and what is said
    again is found by the same token.
    """
    held, size = {(shape[0], shape[1]): f"{shape[3]} {shape[2]}" for shape in data["shapes"]}, data["size"]
    inside = [held.get((row, column), "nothing") for row in range(size) for column in range(size)]
    cells = [f"{each} {number}" for number, each in enumerate(inside, 1)]
    return " ".join(["0", *cells, *([cells[number - 1] for number in sorted(data["about"])] or ["none"])])


def box_of(shape: Sequence[Any]) -> tuple[int, int, int, int]:
    """A shape's box in pixels: left, top, right, bottom."""
    left, top = (cell * CELL + (CELL - WIDTH) // 2 + off for cell, off in ((shape[1], shape[4]), (shape[0], shape[5])))
    return left, top, left + WIDTH, top + WIDTH


def overlap(one: Sequence[int], other: Sequence[int]) -> float:
    """The intersection of two boxes over their union; 0 for a box that is none."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    if across <= 0 or down <= 0 or one[2] <= one[0] or one[3] <= one[1]:
        return 0.0
    both = across * down
    return both / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - both)


def split_of(data: dict[str, Any]) -> str:
    """The split that a picture and its question belong to."""
    text = json.dumps([data["shapes"], data["question"]])
    tenth = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 10
    return next(split for split, tenths in SHARES.items() if tenth in tenths)


def draw(shapes: Sequence[Sequence[Any]], size: int) -> Any:
    """The picture, as PIL's image."""
    with require_extra("vision", "pillow"):
        from PIL import Image, ImageDraw
    picture = Image.new("RGB", (size * CELL, size * CELL), "white")
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        left, top, right, bottom = box_of(shape)
        box, colour = (left, top, right - 1, bottom - 1), COLOURS[shape[3]]
        if shape[2] == "circle":
            pen.ellipse(box, fill=colour)
        elif shape[2] == "square":
            pen.rectangle(box, fill=colour)
        else:
            pen.polygon([((left + right) // 2, top), (right - 1, bottom - 1), (left, bottom - 1)], fill=colour)
    return picture

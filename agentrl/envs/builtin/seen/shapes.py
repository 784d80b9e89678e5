"""Questions about drawn shapes, small enough that a model of half a million parameters learns to see on a CPU.

A picture has 3 x 3 cells; some hold a shape, a little off their middle. A question asks how many shapes have a colour,
which colour a shape has, where one is, or which box holds it:

    user       [picture] Where is the red circle?
    assistant  top left

Nothing in the words tells the answer. The demonstrator (`demonstrate`) errs on half of the tasks, always on the same
ones, so imitation alone stays low; reinforcement learning finds the rest. A picture and its question belong to one
split by a hash of both: one in ten to `eval`, four to `demo`, five to `train`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ConfigError, missing_extra
from agentrl.types import Message, Session, Task, image

CELL, SIDE, WIDTH, JITTER = 16, 3, 12, 1
"""Pixels of a cell's side, cells of the picture's side, pixels of a shape, and how far it is off its middle."""
COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 220), "black": (0, 0, 0)}
FORMS = ("circle", "square", "triangle")
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
KINDS = ("count", "colour", "position", "box")
FEWEST, MOST = 3, 6
"""Shapes of a picture."""
ENOUGH = 0.5
"""Intersection over union from which on a box is right."""
SHARES = {"eval": (0,), "demo": (1, 2, 3, 4), "train": (5, 6, 7, 8, 9)}
"""A split's tenths of all pictures."""
_NUMBER = re.compile(r"\d+")

Shape = tuple[int, str, str, int, int]
"""A cell's number, a form, a colour, and pixels off the middle."""


class Shapes(Env):
    """Questions about a picture of coloured shapes: their number, colour, place, and box.

    Args:
        kinds: the kinds of questions: count, colour, position, box.
        seed: which endless sequence of tasks `tasks` gives.
    """

    splits = ("train", "eval", "demo")
    max_turns = 1

    def __init__(self, kinds: Sequence[str] = KINDS, seed: int = 0) -> None:
        if not kinds or not set(kinds) <= set(KINDS):
            raise ConfigError(f"env.kinds={list(kinds)}: expected one or more of {', '.join(KINDS)}")
        self.kinds, self.seed = tuple(kinds), seed
        self._task = Task(id="")

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings with which the tiny model learns to see in a few minutes."""
        if model != "tiny":
            return {}
        return {
            "steps": 100,
            "warm_start.steps": 300,
            "warm_start.batch": 64,
            "warm_start.demos": 8192,
            "warm_start.lr": 2e-3,
            "algo.lr": 1e-3,
            "algo.minibatches": 1,
            "algo.warmup_steps": 0,
            "algo.kl_coef": 0.0,
            "rollout.turn_tokens": 12,
            "rollout.session_tokens": 128,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """An endless sequence of pictures and questions, the kinds in turn."""
        for index in count():
            rng = random.Random(f"shapes/{self.seed}/{split}/{index}")
            data = question(rng, self.kinds[index % len(self.kinds)])
            while split_of(data) != split:
                data = question(rng, self.kinds[index % len(self.kinds)])
            yield Task(id=f"{split}-{self.seed}-{index}", data=data)

    def reset(self, task: Task, *, seed: int | None = None) -> list[dict[str, Any]]:
        """The picture and the question."""
        self._task = task
        return [{"role": "user", "content": [image(draw(task["shapes"])), task["question"]]}]

    @reward
    def right(self, session: Session) -> float:
        """1 where the answer is right; of a box, where it covers enough of the shape's and little besides."""
        answer, said = self._task["answer"], session.answer.strip().strip(".").lower()
        if self._task["kind"] != "box":
            return float(said == answer)
        numbers = [int(one) for one in _NUMBER.findall(said)[:5] if len(one) < 4]
        return float(len(numbers) == 4 and overlap(numbers, [int(one) for one in answer.split()]) >= ENOUGH)

    def expert(self, messages: Sequence[Message]) -> str:
        """The answer."""
        return str(self._task["answer"])

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """The answer, or on half of the tasks that of another picture."""
        own = random.Random(f"errs/{self._task.id}")
        if own.random() < 0.5:
            return str(self._task["answer"])
        return str(question(own, self._task["kind"])["answer"])

    def fixtures(self) -> Iterator[Fixture]:
        """What counts as an answer."""
        shapes: list[Shape] = [(0, "circle", "red", 0, 0), (4, "square", "red", 0, 0), (8, "square", "blue", 1, -1)]
        first = {"shapes": shapes, "kind": "count", "question": "How many shapes are red?", "answer": "2"}
        yield Fixture(Task(id="count", data=first), "2", FixtureCredit.FULL)
        yield Fixture(Task(id="count", data=first), "2 or 3", FixtureCredit.NONE, "two answers")
        boxed = {"shapes": shapes, "kind": "box", "question": "Which box holds the red circle?", "answer": "2 2 14 14"}
        yield Fixture(Task(id="box", data=boxed), "3 2 14 13", FixtureCredit.FULL, "a box that is nearly right")
        yield Fixture(Task(id="box", data=boxed), "0 0 47 47", FixtureCredit.NONE, "the whole picture")
        yield Fixture(Task(id="box", data=boxed), "2 2 14 14 9", FixtureCredit.NONE, "five numbers")


def question(rng: random.Random, kind: str) -> dict[str, Any]:
    """A picture, and a question about it that has one answer."""
    while True:
        cells = rng.sample(range(SIDE * SIDE), rng.randint(FEWEST, MOST))
        off = range(-JITTER, JITTER + 1)
        shapes: list[Shape] = [
            (cell, rng.choice(FORMS), rng.choice(list(COLOURS)), rng.choice(off), rng.choice(off)) for cell in cells
        ]
        if found := _asked(rng, kind, shapes):
            asked, answer = found
            return {"shapes": shapes, "kind": kind, "question": asked, "answer": answer}


def _asked(rng: random.Random, kind: str, shapes: Sequence[Shape]) -> tuple[str, str] | None:
    """A question and its answer; None where the picture has none of that kind."""
    if kind == "count":
        colour = rng.choice(list(COLOURS))
        return f"How many shapes are {colour}?", str(sum(shape[2] == colour for shape in shapes))
    if kind == "colour":
        forms = [shape[1] for shape in shapes]
        single = [shape for shape in shapes if forms.count(shape[1]) == 1]
        return (f"Which colour has the {single[0][1]}?", single[0][2]) if single else None
    looks = [shape[1:3] for shape in shapes]
    single = [shape for shape in shapes if looks.count(shape[1:3]) == 1]
    if not single:
        return None
    shape = rng.choice(single)
    row, column = divmod(shape[0], SIDE)
    if kind == "position":
        return f"Where is the {shape[2]} {shape[1]}?", f"{ROWS[row]} {COLUMNS[column]}"
    return f"Which box holds the {shape[2]} {shape[1]}?", " ".join(map(str, box_of(shape)))


def box_of(shape: Sequence[Any]) -> tuple[int, int, int, int]:
    """A shape's box in pixels: left, top, right, bottom."""
    row, column = divmod(shape[0], SIDE)
    left, top = column * CELL + (CELL - WIDTH) // 2 + shape[3], row * CELL + (CELL - WIDTH) // 2 + shape[4]
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


def draw(shapes: Sequence[Sequence[Any]]) -> Any:
    """The picture, as PIL's image."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise missing_extra("pillow", "vision") from None
    picture = Image.new("RGB", (SIDE * CELL, SIDE * CELL), "white")
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        left, top, right, bottom = box_of(shape)
        box, colour = (left, top, right - 1, bottom - 1), COLOURS[shape[2]]
        if shape[1] == "circle":
            pen.ellipse(box, fill=colour)
        elif shape[1] == "square":
            pen.rectangle(box, fill=colour)
        else:
            pen.polygon([((left + right) // 2, top), (right - 1, bottom - 1), (left, bottom - 1)], fill=colour)
    return picture

"""Rewards come with every step, or for every part of an answer."""

import random
from typing import Literal

import agentrl
from benchmarks.newcomers.free_text import held_out


class Maze(agentrl.Env):
    """Walk to the exit of a field of four by four; every step nearer pays, every step away costs."""

    max_turns = 8
    return_range = (-2.0, 1.0)
    steps = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}

    def tasks(self, split="train"):
        places = [(x, y) for x in range(4) for y in range(4)]
        pairs = [{"at": a, "exit": b} for a in places for b in places if a != b]
        random.Random(12).shuffle(pairs)
        return held_out(pairs, split)

    def reset(self, task, *, seed=None):
        self.at, self.exit = tuple(task["at"]), tuple(task["exit"])
        self.start = self.distance()
        return f"at {self.at[0]} {self.at[1]}, exit {self.exit[0]} {self.exit[1]}"

    def distance(self):
        return abs(self.at[0] - self.exit[0]) + abs(self.at[1] - self.exit[1])

    @agentrl.tool
    def go(self, way: Literal["up", "down", "left", "right"]) -> str:
        """Take a step."""
        before = self.distance()
        (x, y), (dx, dy) = self.at, self.steps[way]
        self.at = (min(max(x + dx, 0), 3), min(max(y + dy, 0), 3))
        self.earn((before - self.distance()) / self.start)
        if self.at == self.exit:
            self.end()
        return f"at {self.at[0]} {self.at[1]}"

    def demonstrate(self, messages, rng):
        return self.call("go", way=rng.choice(list(self.steps)))


class Spelling(agentrl.Env):
    """Write a word backwards; every letter in its place counts."""

    max_turns = 1

    def tasks(self, split="train"):
        rng = random.Random(13)
        return held_out([{"word": "".join(rng.choices("abcdefgh", k=5))} for _ in range(1500)], split)

    def reset(self, task, *, seed=None):
        self.word = task["word"]
        return f"Backwards: {' '.join(self.word)}"

    @agentrl.reward
    def letters(self, session) -> float:
        said = (session.answer or "").split()
        return sum(a == b for a, b in zip(said, reversed(self.word), strict=False)) / 5 if len(said) == 5 else 0.0

    def demonstrate(self, messages, rng):
        """Each letter right three times in five."""
        return " ".join(letter if rng.random() < 0.6 else rng.choice("abcdefgh") for letter in reversed(self.word))


class Coins(agentrl.Env):
    """Coins lie in some of six boxes; the label says where. Open three boxes."""

    max_turns = 4

    def tasks(self, split="train"):
        rng = random.Random(14)
        return held_out([{"n": n, "full": sorted(rng.sample(range(1, 7), 3))} for n in range(700)], split)

    def reset(self, task, *, seed=None):
        self.full, self.opened = set(task["full"]), []
        return f"Shelf {task['n']}. Coins are in boxes {' '.join(map(str, sorted(self.full)))}."

    @agentrl.tool
    def open(self, box: int) -> str:
        """Open a box, from 1 to 6."""
        new = box in self.full and box not in self.opened
        self.opened.append(box)
        self.earn(1 / 3 if new else 0.0)
        if len(self.opened) == 3:
            self.end()
        return "a coin" if new else "empty"

    def demonstrate(self, messages, rng):
        return self.call("open", box=rng.randint(1, 6))


class Estimate(agentrl.Env):
    """Add two numbers; the nearer, the better."""

    max_turns = 1

    def tasks(self, split="train"):
        pairs = [{"a": a, "b": b} for a in range(1, 31) for b in range(1, 31)]
        random.Random(15).shuffle(pairs)
        return held_out(pairs, split)

    def reset(self, task, *, seed=None):
        self.total = task["a"] + task["b"]
        return f"{task['a']} + {task['b']}"

    @agentrl.reward
    def near(self, session) -> float:
        answer = session.answer or ""
        return max(0.0, 1 - abs(int(answer) - self.total) / 10) if answer.isdecimal() and len(answer) < 4 else 0.0

    def demonstrate(self, messages, rng):
        """Off by up to eight."""
        return str(max(self.total + rng.randint(-8, 8), 0))

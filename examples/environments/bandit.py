"""Step rewards without a right answer: five pulls, and a sign that says which arm pays today."""

import random
from typing import Literal

import agentrl

SIGNS = {"red": "left", "green": "right", "blue": "left", "white": "right"}


class Bandit(agentrl.Env):
    """Two arms; the sign's colour decides which one pays, and how often is up to the seed."""

    max_turns = 5

    def tasks(self, split="train"):
        """Days, each with its sign; every fifth is held out."""
        rng = random.Random(0)
        days = [{"day": day, "sign": rng.choice(list(SIGNS))} for day in range(1000)]
        return [task for task in days if (task["day"] % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The sign; the arms' luck follows from the seed."""
        self.sign, self.day, self.pulls = task["sign"], task["day"], 0
        self.rng = random.Random(seed)
        return f"Day {self.day}. The sign is {self.sign}."

    @agentrl.tool(quick=True)
    def pull(self, arm: Literal["left", "right"]) -> str:
        """Pull the left or the right arm."""
        self.pulls += 1
        pays = self.rng.random() < (0.9 if arm == SIGNS[self.sign] else 0.1)
        self.earn(0.2 * pays)
        if self.pulls == 5:
            self.end()
        return "a coin" if pays else "nothing"

    def demonstrate(self, messages, rng):
        """Pull any arm."""
        return self.call("pull", arm=rng.choice(("left", "right")))

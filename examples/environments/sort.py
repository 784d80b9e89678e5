"""No tools: put letters in order; all or nothing."""

import random
from itertools import permutations

import agentrl


class Sort(agentrl.Env):
    """Sort three or four letters out of six."""

    max_turns = 1

    def tasks(self, split="train"):
        """Every arrangement; one in five is held out, in an order that says nothing."""
        every = ["".join(letters) for n in (3, 4) for letters in permutations("abcdef", n)]
        random.Random(0).shuffle(every)
        return [{"letters": letters} for i, letters in enumerate(every) if (i % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The letters."""
        self.letters = task["letters"]
        return " ".join(self.letters)

    @agentrl.reward
    def sorted(self, session) -> float:
        """1 for the letters in order."""
        return float(session.answer == self.expert(()))

    def expert(self, messages):
        """The letters in order."""
        return " ".join(sorted(self.letters))

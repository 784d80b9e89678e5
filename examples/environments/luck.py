"""Chance and a decision when to stop: the seed throws the dice, and no expert can know them."""

import random

import agentrl


class Luck(agentrl.Env):
    """Throw a die to add to a pot, or stop and keep it; a one loses everything."""

    max_turns = 8

    def tasks(self, split="train"):
        """Tables of a casino: nothing but a number to tell them apart."""
        return [{"table": n} for n in range(500) if (n % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """An empty pot."""
        self.rng, self.pot, self.table = random.Random(seed), 0, task["table"]
        return f"Table {self.table}. The pot is 0."

    @agentrl.tool(quick=True)
    def throw(self) -> str:
        """Throw the die."""
        points = self.rng.randint(1, 6)
        self.pot = 0 if points == 1 else self.pot + points
        if points == 1 or self.pot >= 20:
            self.end()
        return f"A {points}. The pot is {self.pot}."

    @agentrl.reward
    def kept(self, session) -> float:
        """The pot, of twenty."""
        return min(self.pot, 20) / 20

    def demonstrate(self, messages, rng):
        """Stop at random."""
        return "stop" if rng.random() < 0.4 else self.call("throw")

"""No tools: read one entry out of a table that stands in the prompt."""

import random

import agentrl

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay")


class Table(agentrl.Env):
    """Three names with their numbers; what is the number of one of them?"""

    max_turns = 1

    def tasks(self, split="train"):
        """Two thousand different tables; every fifth is held out."""
        rng, tables = random.Random(0), {}
        while len(tables) < 2000:
            rows = [(name, rng.randrange(10, 100)) for name in rng.sample(NAMES, 3)]
            asked, number = rng.choice(rows)
            tables[*rows, asked] = {"rows": rows, "asked": asked, "number": number}
        return [table for i, table in enumerate(tables.values()) if (i % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """The table, and whom it is about."""
        self.number = str(task["number"])
        return ", ".join(f"{name} {number}" for name, number in task["rows"]) + f". {task['asked']}?"

    @agentrl.reward
    def right(self, session) -> float:
        """1 for the right number."""
        return float(session.answer == self.number)

    def expert(self, messages):
        """The number."""
        return self.number

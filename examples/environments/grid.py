"""Step rewards, one of them negative: every move costs, the goal pays, and the episode ends in a tool."""

import random
from typing import Literal

import agentrl

MOVES = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}
SIDE = 3
COST = 0.05


class Grid(agentrl.Env):
    """Walk to the goal on a grid of three by three."""

    max_turns = 8
    return_range = (-max_turns * COST, 1.0)

    def tasks(self, split="train"):
        """Every pair of different places; one in five is held out."""
        places = [(x, y) for x in range(SIDE) for y in range(SIDE)]
        pairs = [{"at": a, "goal": b} for a in places for b in places if a != b]
        random.Random(0).shuffle(pairs)
        return [pair for i, pair in enumerate(pairs) if (i % 5 == 0) == (split == "eval")]

    def reset(self, task, *, seed=None):
        """Where the agent is, and where it shall be."""
        self.at, self.goal = tuple(task["at"]), tuple(task["goal"])
        return self._seen()

    @agentrl.tool(quick=True)
    def move(self, direction: Literal["north", "south", "west", "east"]) -> str:
        """Take one step."""
        (x, y), (dx, dy) = self.at, MOVES[direction]
        self.at = (min(max(x + dx, 0), SIDE - 1), min(max(y + dy, 0), SIDE - 1))
        if self.at == self.goal:
            self.earn(1.0)
            self.end()
        else:
            self.earn(-COST)
        return self._seen()

    def expert(self, messages):
        """First along the row, then along the column."""
        (x, y), (gx, gy) = self.at, self.goal
        if x != gx:
            return self.call("move", direction="east" if x < gx else "west")
        return self.call("move", direction="south" if y < gy else "north")

    def demonstrate(self, messages, rng):
        """Stray now and then."""
        return self.call("move", direction=rng.choice(list(MOVES))) if rng.random() < 0.4 else self.expert(messages)

    def _seen(self):
        return f"at {self.at[0]} {self.at[1]}, goal {self.goal[0]} {self.goal[1]}"

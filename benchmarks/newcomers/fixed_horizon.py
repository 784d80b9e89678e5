"""Nothing ends these but their number of turns."""

import random
from typing import Literal

import agentrl
from benchmarks.newcomers.free_text import held_out


class Slots(agentrl.Env):
    """Three slot machines, one of which is lucky today; six coins."""

    max_turns = 6

    def tasks(self, split="train"):
        rng = random.Random(16)
        return held_out([{"day": day, "lucky": rng.randrange(3)} for day in range(500)], split)

    def reset(self, task, *, seed=None):
        self.rng, self.lucky = random.Random(seed), task["lucky"]
        return f"Day {task['day']}. Three machines: 0, 1, 2."

    @agentrl.tool
    def play(self, machine: Literal[0, 1, 2]) -> str:
        """Put a coin into a machine."""
        won = self.rng.random() < (0.9 if machine == self.lucky else 0.1)
        self.earn(won / 6)
        return "won" if won else "lost"

    def demonstrate(self, messages, rng):
        return self.call("play", machine=rng.randrange(3))


class Stock(agentrl.Env):
    """Order for tomorrow, six days long: what is missing and what is left both cost."""

    max_turns = 6

    def tasks(self, split="train"):
        rng = random.Random(17)
        return held_out([{"shop": shop, "usual": rng.randint(2, 8)} for shop in range(500)], split)

    def reset(self, task, *, seed=None):
        self.usual, self.rng = task["usual"], random.Random(seed)
        return f"Shop {task['shop']} sells about {self.usual} a day. How many do you order?"

    def step(self, message):
        ordered = int(message.text) if message.text.isdecimal() and len(message.text) < 3 else 99
        sold = self.usual + self.rng.choice((-1, 0, 0, 1))
        reward = max(0.0, 1 - abs(ordered - sold) / 4) / 6
        return agentrl.StepResult([agentrl.Message(role="user", content=f"asked for: {sold}")], reward=reward)

    def demonstrate(self, messages, rng):
        return str(rng.randint(1, 9))


class Scissors(agentrl.Env):
    """Rock, paper, scissors against somebody who always plays what you played last."""

    max_turns = 5
    beats = {"rock": "scissors", "paper": "rock", "scissors": "paper"}

    def tasks(self, split="train"):
        return held_out([{"round": n, "first": list(self.beats)[n % 3]} for n in range(600)], split)

    def reset(self, task, *, seed=None):
        self.next = task["first"]
        return f"Round {task['round']}. They begin with {self.next}. Your move?"

    def step(self, message):
        mine = message.text if message.text in self.beats else None
        won = mine is not None and self.beats[mine] == self.next
        theirs, self.next = self.next, mine or "rock"
        return agentrl.StepResult([agentrl.Message(role="user", content=f"they: {theirs}")], reward=won / 5)

    def demonstrate(self, messages, rng):
        return rng.choice(list(self.beats))


class Traffic(agentrl.Env):
    """Two roads cross; let the longer queue go, five times."""

    max_turns = 5

    def tasks(self, split="train"):
        rng = random.Random(18)
        return held_out(
            [{"crossing": n, "cars": [[rng.randint(0, 9), rng.randint(0, 9)] for _ in range(5)]} for n in range(500)],
            split,
        )

    def reset(self, task, *, seed=None):
        self.cars, self.turn = task["cars"], 0
        return f"Crossing {task['crossing']}. {self.seen()}"

    def seen(self):
        return "north {} east {}".format(*self.cars[self.turn]) if self.turn < 5 else "done"

    @agentrl.tool
    def green(self, road: Literal["north", "east"]) -> str:
        """Give one road green light."""
        north, east = self.cars[self.turn]
        chosen, most = (north if road == "north" else east), max(north, east)
        self.earn(0.2 * (chosen / most if most else 1.0))
        self.turn += 1
        return self.seen()

    def demonstrate(self, messages, rng):
        return self.call("green", road=rng.choice(("north", "east")))
